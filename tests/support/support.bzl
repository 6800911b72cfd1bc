"""Tests that start the real daemon and real clients."""

load("//:berth.bzl", "berth_cc_test")

def berth_process_test(name, deps = [], data = [], size = "medium", **kwargs):
    """A test of the daemon, the command and actors as processes; they come as data."""
    berth_cc_test(
        name = name,
        srcs = [name + ".cc"],
        size = size,
        data = data + [
            "//client/cli:berth",
            "//daemon:berthd",
            "//tests/support:actor",
        ],
        deps = deps + [
            "//tests/support:actor_handle",
            "//tests/support:test_daemon",
            "//tests/support:testing",
        ],
        **kwargs
    )
