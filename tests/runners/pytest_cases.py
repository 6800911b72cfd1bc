"""Tests as users write them, for pytest_test.cc: each looks at the one permit that the pool has."""

import os
import subprocess
import sys
import time

import pytest

BERTH = os.environ["BERTH_COMMAND"]
TAKEN, FREE = 75, 0


def beside():
    """How a job that has nothing to do with this one fares."""
    names = ("BERTH_SESSION", "BERTH_PERMIT_KEEPER")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run([BERTH, "run", "--no-wait", "--", "true"], env=environment, check=False).returncode


class TestUnderRun:
    """With `berth run -- pytest`."""

    def test_a_child_has_no_fd_of_the_session_and_nests_all_the_same(self):
        fds = os.environ["BERTH_SESSION"].split(",")[:2]
        assert all(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds)
        # subprocess closes what it was not told to hand down: the child keeps no session open.
        script = f"for fd in {' '.join(fds)}; do [ ! -e /proc/$$/fd/$fd ] || exit 9; done; exec $BERTH_COMMAND run --no-wait -- true"
        assert subprocess.run(["sh", "-c", script], check=False).returncode == 0
        assert beside() == TAKEN

    def test_nothing_is_freed_when_children_come_and_go(self):
        for _ in range(5):
            subprocess.run([BERTH, "run", "--no-wait", "--", "true"], check=True)
            assert beside() == TAKEN

    def test_a_killed_child_frees_nothing_and_leaks_nothing(self):
        child = subprocess.Popen([BERTH, "run", "--", "sh", "-c", "echo in; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"in\n"
        child.kill()
        child.wait()
        assert beside() == TAKEN

    def test_a_child_that_is_handed_the_fds_holds_them(self):
        fds = [int(fd) for fd in os.environ["BERTH_SESSION"].split(",")[:2]]
        assert subprocess.run([BERTH, "run", "--no-wait", "--", "true"], pass_fds=fds, check=False).returncode == 0


class TestWithTheFixture:
    """With plain `pytest`: a permit for each test."""

    def test_it_is_held_while_the_test_runs(self, gpu_permit):
        assert beside() == TAKEN
        assert os.environ["BERTH_SESSION"] == gpu_permit["BERTH_SESSION"]
        assert subprocess.run([BERTH, "run", "--no-wait", "--", "true"], check=False).returncode == 0

    def test_it_is_not_held_between(self):
        assert beside() == FREE
        assert "BERTH_SESSION" not in os.environ

    @pytest.mark.gpu_permit("--gpus", "1", "--mem", "1MiB")
    def test_it_names_a_device(self, gpu_permit):
        assert gpu_permit["BERTH_DEVICE"] == os.environ["BERTH_DEVICE"] == "HOST-0"

    def test_and_not_afterwards(self):
        assert "BERTH_DEVICE" not in os.environ

    @pytest.mark.parametrize("odd", ["ä" * 100])
    def test_whatever_its_name_is(self, gpu_permit, odd):
        assert beside() == TAKEN

    @pytest.mark.xfail(strict=True)
    def test_one_that_fails_gives_back_too(self, gpu_permit):
        assert False

    def test_as_is_seen(self):
        assert beside() == FREE


class TestThatLosesItsPermit:
    def test_does_not_notice(self, gpu_permit):
        # The runner's test revokes the permit once this file is there.
        with open(os.environ["HELD"], "x", encoding="utf-8"):
            pass
        while beside() != FREE:
            pass


class TestBesideOthers:
    """One of several pytest processes at once: FOLDER has an entry for each test that holds a permit."""

    @pytest.mark.parametrize("turn", range(3))
    def test_holds_beside_at_most_one_other(self, gpu_permit, turn):
        folder = os.environ["FOLDER"]
        full = f"{folder}.full"
        mine = f"{folder}/{os.getpid()}-{turn}"
        deadline = time.monotonic() + 60
        with open(mine, "x", encoding="utf-8"):
            pass
        # The permit returns after its entry is gone, so entries are never more than permits.
        try:
            while not os.path.exists(full):
                assert time.monotonic() < deadline, "the pool never had two holders"
                if len(os.listdir(folder)) == 2:
                    with open(full, "w", encoding="utf-8"):
                        pass
                time.sleep(0.01)
            beside()
            assert len(os.listdir(folder)) <= 2
        finally:
            os.unlink(mine)


class TestThatDies:
    def test_dies_with_its_permit(self, gpu_permit):
        print("holding", flush=True)
        assert beside() == TAKEN
        os.kill(os.getpid(), 9)


if __name__ == "__main__":
    sys.exit("run me with pytest")
