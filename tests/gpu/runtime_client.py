#!/usr/bin/env python3
"""runtime_client.py SEED BYTES: what gpu_test.cc is, by the CUDA runtime instead of the driver's own interface.

Knows nothing of Berth. Prints "right" where every byte that it looked at was as it had written it, and "wrong: ..." else;
with --have instead of both it ends with 0 where there is a CUDA runtime.
"""

import ctypes
import glob
import site
import sys

WINDOW = 4 << 20
ROUNDS = 4
TO_HOST = 2


def load():
    """The toolkit's, or one that came with a Python package."""
    packaged = []
    for folder in site.getsitepackages():
        packaged += glob.glob(f"{folder}/nvidia/**/libcudart.so*", recursive=True)
    for name in ["libcudart.so", "libcudart.so.13", "libcudart.so.12", *packaged]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def must(runtime, code, what):
    if code != 0:
        runtime.cudaGetErrorString.restype = ctypes.c_char_p
        sys.exit(f"wrong: {what}: {runtime.cudaGetErrorString(code).decode()}")


def compute(runtime, value, size):
    memory = ctypes.c_void_p()
    must(runtime, runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(size)), "cudaMalloc")
    window = min(size, WINDOW)
    seen = ctypes.create_string_buffer(window)
    for turn in range(ROUNDS):
        now = (value + turn) % 256
        must(runtime, runtime.cudaMemset(memory, now, ctypes.c_size_t(size)), "cudaMemset")
        must(runtime, runtime.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
        for offset in (0, (size - window) // 2, size - window):
            at = ctypes.c_void_p(memory.value + offset)
            must(runtime, runtime.cudaMemcpy(seen, at, ctypes.c_size_t(window), TO_HOST), "cudaMemcpy")
            if seen.raw != bytes([now]) * window:
                sys.exit(f"wrong: a byte after {offset} is another's")
    must(runtime, runtime.cudaFree(memory), "cudaFree")
    must(runtime, runtime.cudaDeviceReset(), "cudaDeviceReset")


def main():
    runtime = load()
    if sys.argv[1:] == ["--have"]:
        sys.exit(0 if runtime else 1)
    if len(sys.argv) != 3:
        sys.exit("usage: runtime_client.py SEED BYTES | --have")
    compute(runtime, int(sys.argv[1]), int(sys.argv[2]))
    print("right")


main()
