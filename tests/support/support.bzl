"""Tests that start the real daemon and real clients."""

load("//deploy/bazel:berth.bzl", "berth_cc_test")

# As _TIMEOUTS of berth.bzl.
_TIMEOUTS = {"small": "moderate", "medium": "long", "large": "eternal"}

def other_user_test(name, test, size = "medium", filter = "*"):
    """The program of another test, with clients of another user than the daemon's. Without root it is skipped.

    `filter` chooses among its cases: `tests/run --other-user` runs them all.
    """
    native.sh_test(
        name = name,
        size = size,
        timeout = _TIMEOUTS[size],
        srcs = ["//tests/support:as_other_user"],
        args = ["$(location %s)" % test, "'--gtest_filter=%s'" % filter],
        data = [test],
        tags = ["no-sanitizer"],
    )

def berth_process_test(name, deps = [], data = [], size = "medium", other_user = "", **kwargs):
    """A test of the daemon, the command and actors as processes; they come as data.

    `other_user` makes a second test of the same program, NAME_as_other_user, of the cases that this filter chooses.
    """
    if other_user:
        other_user_test(name = name + "_as_other_user", test = ":" + name, size = size, filter = other_user)
    berth_cc_test(
        name = name,
        srcs = [name + ".cc"],
        size = size,
        data = data + [
            "//client/cli:berth",
            "//daemon:berthd",
            "//tests/support/actor",
        ],
        deps = deps + [
            "//tests/support/actor:actor_handle",
            "//tests/support/daemon:test_daemon",
            "//tests/support:testing",
        ],
        **kwargs
    )
