"""Berth's own targets: one place for the warnings that are errors in our code and only there."""

load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")

_COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-sign-compare",
    "-Wno-missing-field-initializers",
]

_PRECOMPILED = "//deploy/bazel:system"

# `precompiled` is False for units that are compiled with options of their own.
def _copts(copts, precompiled):
    if not precompiled:
        return _COPTS + copts
    with_header = ["-include-pch", "$(BINDIR)/deploy/bazel/system.pch"]
    return _COPTS + copts + select({
        "//deploy/bazel:precompiles_fastbuild": with_header,
        "//deploy/bazel:precompiles_opt": with_header,
        "//conditions:default": [],
    })

_VERSIONS = "@system//:versions"

def _deps(deps, precompiled):
    deps = [_VERSIONS] + deps
    if not precompiled:
        return deps
    return deps + select({
        "//deploy/bazel:precompiles_fastbuild": [_PRECOMPILED],
        "//deploy/bazel:precompiles_opt": [_PRECOMPILED],
        "//conditions:default": [],
    })

def berth_cc_library(name, copts = [], deps = [], precompiled = True, **kwargs):
    cc_library(name = name, copts = _copts(copts, precompiled), deps = _deps(deps, precompiled), **kwargs)

def berth_cc_binary(name, copts = [], deps = [], precompiled = True, linkshared = False, **kwargs):
    """A program, or with `linkshared` a shared library."""
    cc_binary(
        name = name,
        copts = _copts(copts, precompiled),
        linkshared = linkshared,
        deps = ([] if linkshared else ["@system//:program"]) + _deps(deps, precompiled),
        **kwargs
    )

# The timeout of a test by its size: one step above Bazel's own, as two tests run at once on machines with other load.
_TIMEOUTS = {"small": "moderate", "medium": "long", "large": "eternal"}

def berth_cc_test(name, copts = [], size = "small", data = [], deps = [], precompiled = True, **kwargs):
    """A GoogleTest whose main() comes with the library."""
    cc_test(
        name = name,
        size = size,
        timeout = _TIMEOUTS[size],
        copts = _copts(copts, precompiled),
        # Under --config=tsan a test and its children read this from the folder they run in.
        data = data + ["//tests:tsan_suppressions.txt"],
        deps = _deps(deps, precompiled) + ["@system//:gtest_main"],
        **kwargs
    )

def berth_proto_library(name, srcs, services = [], imports = [], deps = []):
    """Generates C++ for `srcs`, and gRPC stubs for those also named in `services`.

    `imports` are the files of this package that `srcs` import from other targets, and `deps` those. Generated headers
    are included by the path below this package's folder, e.g. "berth/v1/permit.pb.h".
    """
    outs = []
    for src in srcs:
        stem = src[:-len(".proto")]
        outs += [stem + ".pb.h", stem + ".pb.cc"]
        if src in services:
            outs += [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"]
    package = native.package_name()
    commands = [
        "/usr/bin/protoc -I{package} -I/usr/include --cpp_out=$(RULEDIR) {srcs}".format(
            package = package,
            srcs = " ".join([package + "/" + src for src in srcs]),
        ),
    ]
    if services:
        commands.append(
            ("/usr/bin/protoc -I{package} -I/usr/include --grpc_out=$(RULEDIR) " +
             "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin {srcs}").format(
                package = package,
                srcs = " ".join([package + "/" + src for src in services]),
            ),
        )
    native.genrule(
        name = name + "_generated",
        srcs = srcs + imports + ["@system//:versions.h"],
        outs = outs,
        cmd = " && ".join(commands),
    )
    cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        copts = ["-w"],
        includes = ["."],
        visibility = ["//visibility:public"],
        deps = deps + ["@system//:grpc", _VERSIONS],
    )
