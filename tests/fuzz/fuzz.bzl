"""Fuzzers: as tests, and for libFuzzer."""

load("//deploy/bazel:berth.bzl", "berth_cc_library")
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_test")

def berth_fuzzer(name, deps, data = []):
    """`name`.cc as the test `name`_test and, where --config=fuzz builds it, as `name`_fuzz with libFuzzer's main()."""
    berth_cc_library(
        name = name,
        testonly = True,
        srcs = [name + ".cc"],
        # Nothing but a main() refers to it.
        alwayslink = True,
        deps = deps + [":fuzz"],
    )
    cc_test(
        name = name + "_test",
        size = "small",
        # As _TIMEOUTS of berth.bzl.
        timeout = "moderate",
        tags = ["scaled"],
        data = data + native.glob(["corpus/%s/**" % name]) + ["//tests:tsan_suppressions.txt"],
        deps = [
            ":" + name,
            ":fuzz_test_main",
        ],
    )
    cc_binary(
        name = name + "_fuzz",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        # Linking needs clang's fuzzer runtime: built only by --config=fuzz.
        tags = ["manual"],
        deps = [":" + name],
    )
