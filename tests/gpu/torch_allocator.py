#!/usr/bin/env python3
"""Allocate and free of PyTorch's caching allocator, in lines like those of the benchmarks (tests/bench/measurement.h):

  name | value | unit | against | ratio | bound | holds or short

Taken from Python, as models do it; a last line says what a call from Python takes by itself. Without torch or without a
GPU it says so, and ends with 0.
"""

import statistics
import time

PAIRS = 64
SAMPLES = 2000
WARM_UP = 200
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]


def name_of(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size:,} B"


def pair_times(pair):
    """Nanoseconds a pair, of each of many short runs."""
    samples = []
    for i in range(-WARM_UP, SAMPLES):
        start = time.perf_counter_ns()
        for _ in range(PAIRS):
            pair()
        if i >= 0:
            samples.append((time.perf_counter_ns() - start) / PAIRS)
    return sorted(samples)


def report(name, samples):
    # The median's distribution-free 95 % interval, by order statistics.
    half = 0.98 * len(samples) ** 0.5
    low, high = samples[int(len(samples) / 2 - half)], samples[int(len(samples) / 2 + half)]
    print(f"{name} | {statistics.median(samples):.4g} [{low:.4g}-{high:.4g}] | ns | - | - | - | -", flush=True)


def main():
    try:
        import torch
    except ImportError:
        print("-- skipped: PyTorch's caching allocator: torch is not installed")
        return
    if not torch.cuda.is_available():
        print("-- skipped: PyTorch's caching allocator: torch sees no GPU")
        return
    torch.cuda.init()
    for size in SIZES:
        def pair():
            torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(size))

        report(f"torch caching_allocator_alloc+delete {name_of(size)}", pair_times(pair))
    for size in SIZES:
        def pair():
            torch.empty(size, dtype=torch.uint8, device="cuda")

        report(f"torch empty+del {name_of(size)}", pair_times(pair))
    # What Python itself takes of these: a call of as little as can be.
    report("torch: a call from Python", pair_times(torch.cuda.is_initialized))


main()
