#!/usr/bin/python3
"""deploy/install-packages installs what is missing, and ends each lack with one line, with programs that play apt's."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

# Programs by their names. Each writes its call into the file `calls` of the folder above its own.
PROGRAMS = {
    "dpkg-query": """case " $PLAY_MISSING " in *" ${!#} "*) [ -e "$folder/installed" ] ;; esac && printf installed""",
    # A service that a package starts may have no lock open.
    "apt-get": """[ ! -e "/proc/$$/fd/8" ] || exit 98
        case "$*" in *"$PLAY_FAILS"*) exit 100 ;; *install*) touch "$folder/installed" ;; esac""",
    # Another run, which had the lock, has installed the packages meanwhile.
    "flock": '[ -z "$PLAY_OTHER" ] || touch "$folder/installed"',
    "id": 'echo "$PLAY_USER"',
    "sudo": 'exec "$@"',
}
PROGRAM = """#!/bin/bash
folder=${0%/bin/*}
echo "${0##*/} $*" >>"$folder/calls"
"""


class InstallPackagesTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "bin").mkdir()
        for name, text in PROGRAMS.items():
            (self.folder / "bin" / name).write_text(PROGRAM + text + "\n")
            (self.folder / "bin" / name).chmod(0o755)
        for name in ("bash", "env", "touch"):
            (self.folder / "bin" / name).symlink_to(shutil.which(name))

    def install(self, missing="", user="0", fails="nothing", other=""):
        """Returns the exit code, what the script says, and the calls of apt-get and sudo."""
        result = subprocess.run(
            ["bash", SCRIPT], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env={"PATH": str(self.folder / "bin"), "PLAY_MISSING": missing, "PLAY_USER": user, "PLAY_FAILS": fails,
                 "PLAY_OTHER": other})
        calls = (self.folder / "calls").read_text().splitlines()
        calls = [call for call in calls if call.startswith(("apt-get", "sudo"))]
        self.assertEqual(result.stdout, "")
        return result.returncode, result.stderr, calls

    def test_nothing_is_said_where_all_are_installed(self):
        self.assertEqual(self.install(), (0, "", []))

    def test_missing_packages_are_installed(self):
        code, said, calls = self.install(missing="spin cmake")
        self.assertEqual((code, said), (0, "installing 2 packages: cmake spin\n"))
        self.assertEqual(len(calls), 2, calls)
        self.assertRegex(calls[1], r"^apt-get install -y .* cmake spin$")
        # A second run finds them.
        (self.folder / "calls").unlink()
        self.assertEqual(self.install(missing="spin cmake"), (0, "", []))

    def test_a_user_installs_with_sudo(self):
        code, said, calls = self.install(missing="spin", user="1000")
        self.assertEqual((code, said), (0, "installing 1 packages: spin\n"))
        self.assertEqual([call.split()[0] for call in calls], ["sudo", "apt-get"] * 2)

    def test_two_runs_install_once(self):
        self.assertEqual(self.install(missing="spin", other="yes"), (0, "", []))

    def test_each_lack_is_one_line(self):
        for lacks, user, fails, text in [
            ("", "0", "update", "apt-get update ended with 100; see its messages above"),
            ("", "0", "install", "apt-get install ended with 100; see its messages above, and /etc/apt/sources.list"),
            ("sudo", "1000", "nothing", "neither root nor sudo here; let root install spin"),
            ("apt-get", "0", "nothing", "no apt-get here to install spin; Debian 12 has all of them"),
        ]:
            with self.subTest(text):
                if lacks:
                    (self.folder / "bin" / lacks).rename(self.folder / lacks)
                code, said, _ = self.install("spin", user, fails)
                if lacks:
                    (self.folder / lacks).rename(self.folder / "bin" / lacks)
                self.assertEqual(code, 1)
                lines = [line for line in said.splitlines() if not line.startswith("installing ")]
                self.assertEqual(len(lines), 1, said)
                self.assertTrue(lines[0].startswith("deploy/install-packages: " + text), said)


SCRIPT = os.path.abspath(sys.argv.pop(1))
unittest.main()
