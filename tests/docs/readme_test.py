#!/usr/bin/env python3
"""The README is short, and a shell that types its tutorial gets what the text promises."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

LINES = 120
# A pause that is long enough for a person, and what the test waits for on a busy machine.
PAUSE = ("sleep 0.2;", "until berth permits | grep -q job$i; do sleep 0.1; done;")
# Patterns of the shell's output, in order.
PROMISED = [
    # The loop ends: after an answer "no Berth daemon answers", unless the daemon was faster.
    r"serving for",
    # Two jobs hold a permit, and the third waits.
    r"\n +1 +gpu-tests .* job1\n +2 +gpu-tests .* job2\n",
    r"\nWAITER .*\n +3 +gpu-tests .* job3\n",
    r"waiter 3: berth\(\d+\) requests 1 of pool gpu-tests.*\nbecause: 0 of 2 free",
    # A permit returned, and the waiter runs.
    r"\n +2 +gpu-tests .* job2\n +3 +gpu-tests .* job3\n",
    r"\nBERTH_DEVICE=",
    r"berth-holder\(\d+\)",
    r"\ndemo: ",
    r"\nBLOCK .*\n.* LIVE .* demo\n",
    r"DEVICE  BUDGET",
    r"\nGRANTED .*\n.* permit .* job1\n(.*\n)* *.* block .* demo\n",
    r"\nstopped with 0 units and 0 blocks held by 0 sessions\n",
]


def commands(readme):
    """Returns the indented lines of the tutorial."""
    section = re.search(r"^## Five minutes\n(.*?)^## ", readme, re.DOTALL | re.MULTILINE)
    assert section, "no section 'Five minutes'"
    return [line[4:] for line in section.group(1).split("\n") if line.startswith("    ")]


def main():
    readme = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    programs = [pathlib.Path(program).resolve() for program in sys.argv[2:]]
    count = readme.count("\n")
    assert count <= LINES, f"README.md has {count} lines, at most {LINES} are allowed"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as text:
        folder = pathlib.Path(text)
        # The tutorial asks Bazel where the programs are.
        for name in ("bin/daemon", "bin/client/cli", "path", "berth"):
            (folder / name).mkdir(parents=True)
        for program in programs:
            place = "daemon" if program.name == "berthd" else "client/cli"
            (folder / "bin" / place / program.name).symlink_to(program)
        bazel = folder / "path/bazel"
        bazel.write_text(f"#!/bin/sh\necho {folder / 'bin'}\n")
        bazel.chmod(0o755)
        (folder / "README.md").write_text(readme, encoding="utf-8")
        script = "\n".join([*commands(readme), "wait", ""])
        assert PAUSE[0] in script, f"the tutorial lacks {PAUSE[0]!r}"
        with subprocess.Popen(
                ["bash", "-c", script.replace(*PAUSE)], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
                env={**os.environ, "PATH": f"{folder / 'path'}:{os.environ['PATH']}",
                     "BERTH_FOLDER": str(folder / "berth")}) as shell:
            try:
                output, _ = shell.communicate(timeout=100)
            except subprocess.TimeoutExpired:
                # The daemon among others.
                os.killpg(shell.pid, signal.SIGTERM)
                output, _ = shell.communicate()
    print(output)
    position = 0
    for promise in PROMISED:
        found = re.search(promise, output[position:])
        assert found, f"the rest of the tutorial's output has no {promise!r}:\n{output[position:]}"
        position += found.end() - 1
    print("1 tutorial")


main()
