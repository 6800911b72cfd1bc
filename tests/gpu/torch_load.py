#!/usr/bin/env python3
"""Times safetensors.torch.load_file of a file to device 0: one number a line, in milliseconds.

    torch_load.py FILE

Without torch, safetensors or a GPU it says so, and ends with 0.
"""

import sys
import time

ROUNDS = 3


def main():
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError as error:
        print(f"-- skipped: safetensors.torch.load_file: {error}")
        return
    if not torch.cuda.is_available():
        print("-- skipped: safetensors.torch.load_file: torch sees no GPU")
        return
    torch.cuda.init()
    # The first round warms up.
    for i in range(ROUNDS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        tensors = load_file(sys.argv[1], device="cuda:0")
        torch.cuda.synchronize()
        taken = (time.perf_counter() - start) * 1e3
        if i > 0:
            print(f"{taken:.1f}", flush=True)
        del tensors
        torch.cuda.empty_cache()


main()
