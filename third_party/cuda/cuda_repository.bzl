"""Finds the CUDA toolkit's headers. Only headers: the driver is loaded at run time."""

_PLACES = [
    "/usr/local/cuda",
    "/usr/local/cuda-13.0",
    "/usr/local/cuda-12",
    "/usr/local/cuda-11.8",
    "/usr",
]

_WITH_TOOLKIT = """
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/**/*.h"]),
    defines = ["BERTH_HAVE_CUDA_HEADERS=1"],
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

_WITHOUT_TOOLKIT = """
cc_library(
    name = "headers",
    visibility = ["//visibility:public"],
)
"""

def _find(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "")
    if home == "none":
        return None
    for place in ([home] if home else []) + _PLACES:
        if ctx.path(place + "/include/cuda.h").exists:
            return place
    return None

def _cuda_repository_impl(ctx):
    place = _find(ctx)
    if place == None:
        ctx.file("BUILD.bazel", _WITHOUT_TOOLKIT)
        return

    # cuda.h includes nothing but the C library's own headers.
    ctx.symlink(place + "/include/cuda.h", "include/cuda.h")
    ctx.file("BUILD.bazel", _WITH_TOOLKIT)

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    doc = "`CUDA_HOME` names a toolkit, or `none` to build without one; unset, the usual places are tried.",
    environ = ["CUDA_HOME"],
    local = True,
)
