"""pytest: a permit for each test that uses a GPU.

In conftest.py, with this file's folder in PYTHONPATH (or the file beside conftest.py):

    pytest_plugins = ["berth_pytest"]

and then

    def test_adds_vectors(gpu_permit): ...              # holds a permit while it runs

    @pytest.mark.gpu_permit("--mem", "4GiB")            # with options of `berth acquire`
    def test_large(gpu_permit): ...

While the test runs, os.environ has the permit's environment, with CUDA_VISIBLE_DEVICES if the options name a device.
The test's children therefore nest in the permit, although Python's subprocess closes the session's fds. A process
that has initialised CUDA before the test does not read CUDA_VISIBLE_DEVICES again.

Without a daemon the test is skipped; BERTH_REQUIRE=1 makes that a failure. BERTH_COMMAND names another `berth`.
"""

import json
import os
import subprocess

import pytest

_NO_DAEMON = "unreachable"


def _command():
    return os.environ.get("BERTH_COMMAND", "berth")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu_permit(*options): options of `berth acquire` for the fixture gpu_permit")


@pytest.fixture
def gpu_permit(request):
    """Holds a permit until the test is over; its value is the permit's environment."""
    options = [word for mark in request.node.iter_markers("gpu_permit") for word in mark.args]
    # At most 128 bytes, and any name: an argument has no zero byte, and UTF-8 no surrogates.
    label = request.node.name.replace("\0", "?").encode(errors="replace")[:128].decode(errors="ignore")
    # The permit ends with this process, however the process ends.
    acquired = subprocess.run(
        [_command(), "--json", "acquire", "--owner", str(os.getpid()), "--label", label, *options],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if acquired.returncode != 0:
        # A daemon that refuses this user has the same code.
        reason = json.loads(acquired.stdout or "{}").get("reason")
        if reason == _NO_DAEMON and os.environ.get("BERTH_REQUIRE", "") in ("", "0"):
            pytest.skip("needs a Berth daemon")
        pytest.fail(f"berth acquire ended with {acquired.returncode}")
    environment = json.loads(acquired.stdout)["environment"]
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield environment
    finally:
        released = subprocess.run([_command(), "release"], check=False)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    if released.returncode != 0:
        pytest.fail(f"berth release ended with {released.returncode}: the permit was lost while the test ran")
