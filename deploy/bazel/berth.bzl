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
_WITH_HEADER = ["-include-pch", "$(BINDIR)/deploy/bazel/system.pch"]

def _precompiles(with_header, without):
    return select({
        "//deploy/bazel:precompiles_fastbuild": with_header,
        "//deploy/bazel:precompiles_opt": with_header,
        "//conditions:default": without,
    })

# `precompiled` is False for targets that are compiled with options of their own.
def _copts(copts, precompiled):
    if not precompiled:
        return _COPTS + copts
    return _COPTS + copts + _precompiles(_WITH_HEADER, [])

_VERSIONS = "@system//:versions"

def _deps(deps, precompiled):
    deps = [_VERSIONS] + deps
    if not precompiled:
        return deps
    return deps + _precompiles([_PRECOMPILED], [])

# Parsing the project's headers takes most of the compile time of a short source. With `units`, that many generated
# sources each include several of the given sources, and so parse the headers once for all of these. Builds without the
# precompiled header, as with gcc, compile each source separately, which verifies its includes.
def _units(name, srcs, units, testonly):
    """Returns a target's sources and their dependencies: `srcs`, or `units` generated sources that include them."""
    if not units:
        return srcs, []
    headers = [src for src in srcs if src.endswith(".h")]
    sources = [src for src in srcs if not src.endswith(".h")]
    each = (len(sources) + units - 1) // units
    outs = []
    for unit in range(units):
        out = "{}_unit_{}.cc".format(name, unit + 1)
        outs.append(out)
        native.genrule(
            name = "{}_unit_{}".format(name, unit + 1),
            srcs = sources[unit * each:(unit + 1) * each],
            outs = [out],
            cmd = "for file in $(SRCS); do case $$file in *.cc) echo \"#include \\\"$$file\\\"\" ;; esac; done > $@",
            testonly = testonly,
            visibility = ["//visibility:private"],
        )
    parts = name + "_parts"
    cc_library(name = parts, textual_hdrs = sources, testonly = testonly, visibility = ["//visibility:private"])
    return _precompiles(headers + outs, srcs), [":" + parts]

def berth_cc_library(name, srcs = [], units = 0, copts = [], deps = [], precompiled = True, testonly = None, **kwargs):
    """A library. With `units`, its sources are compiled as that many units, in the given order."""
    srcs, parts = _units(name, srcs, units, testonly)
    cc_library(
        name = name,
        srcs = srcs,
        copts = _copts(copts, precompiled),
        deps = parts + _deps(deps, precompiled),
        testonly = testonly,
        **kwargs
    )

def berth_cc_binary(name, copts = [], deps = [], precompiled = True, linkshared = False, **kwargs):
    """A program, or with `linkshared` a shared library."""
    cc_binary(
        name = name,
        copts = _copts(copts, precompiled),
        linkshared = linkshared,
        deps = ([] if linkshared else ["@system//:program"]) + _deps(deps, precompiled),
        **kwargs
    )

# The timeout of a test by its size: one step above Bazel's default, because two tests run at once on loaded machines.
_TIMEOUTS = {"small": "moderate", "medium": "long", "large": "eternal"}

def berth_cc_test(
        name,
        srcs,
        units = 0,
        copts = [],
        size = "small",
        data = [],
        deps = [],
        precompiled = True,
        **kwargs):
    """A GoogleTest whose main() comes with the library. `units` are those of berth_cc_library()."""
    srcs, parts = _units(name, srcs, units, True)
    cc_test(
        name = name,
        srcs = srcs,
        size = size,
        timeout = _TIMEOUTS[size],
        copts = _copts(copts, precompiled),
        # Under --config=tsan a test and its children read this from the folder they run in.
        data = data + ["//tests:tsan_suppressions.txt"],
        deps = parts + _deps(deps, precompiled) + ["@system//:gtest_main"],
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
        copts = ["-w"] + _precompiles(_WITH_HEADER, []),
        includes = ["."],
        visibility = ["//visibility:public"],
        deps = deps + ["@system//:grpc", _VERSIONS] + _precompiles([_PRECOMPILED], []),
    )
