#!/usr/bin/python3
"""tests/run counts, explains and repeats what it should, with a Bazel that plays results from a table.

The player is this file under the name `bazel`, first in PATH. Each test target of a case has one result per run.
"""

import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PASSES = '<testcase name="Fine"></testcase>'
SKIPS = '<testcase name="Skips"><skipped/></testcase>'
WAITED = """<testcase name="Waits">
<failure message="no"></failure>
<properties>
<property name="ran_out_of_time" value="1"/>
</properties>
</testcase>"""
WRONG = '<testcase name="Wrong">\n<failure message="no"></failure>\n</testcase>'
WAITED_AND_WRONG = WAITED.replace("<failure", '<failure message="also"></failure>\n<failure', 1)
ENDED = "[==========] 2 tests from 1 test suite ran. (3 ms total)\n"


def player(arguments):
    """Plays Bazel in the folder of a case: state.json maps targets to lists of [state, log, cases...]."""
    folder = pathlib.Path(__file__).parent.parent
    state = json.loads((folder / "state.json").read_text())
    command = arguments[0]
    if command == "info":
        print(folder / "testlogs" if arguments[1] == "bazel-testlogs" else os.getpid())
        return 0
    if command == "query":
        print("\n".join(state["tests"]))
        return 0
    if command == "build":
        for line in state.get("build", []):
            print(line)
        return 1 if "build" in state else 0
    if command != "test":
        return 0
    named = [argument for argument in arguments if argument.startswith("//") and argument != "//..."]
    code = 0
    for target in named or state["tests"]:
        results = state["tests"][target]
        result, log, *cases = results.pop(0)
        logs = folder / "testlogs" / target[2:].replace(":", "/")
        logs.mkdir(parents=True, exist_ok=True)
        (logs / "test.log").write_text(log)
        failures = sum("<failure" in case for case in cases)
        counts = f'tests="{len(cases)}" failures="{failures}" disabled="0" errors="0"' if cases else ""
        (logs / "test.xml").write_text(f"<testsuites {counts}>\n" + "\n".join(cases) + "\n</testsuites>\n")
        print(f"{target}    {result} in 1.5s")
        if result != "PASSED":
            code = 3
    (folder / "state.json").write_text(json.dumps(state))
    return code


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("tests", "deploy", "bin", "home"):
            (self.folder / name).mkdir()
        shutil.copy(RUN, self.folder / "tests/run")
        (self.folder / "tests/flaky").write_text("# None.\n//listed:test\n")
        install = self.folder / "deploy/install-packages"
        install.write_text("#!/bin/sh\n")
        install.chmod(0o755)
        shutil.copy(__file__, self.folder / "bin/bazel")
        (self.folder / "bin/bazel").chmod(0o755)

    def run_gate(self, tests, *arguments, environment=None, **state):
        (self.folder / "state.json").write_text(json.dumps({"tests": tests, **state}))
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        result = subprocess.run(
            [self.folder / "tests/run", *arguments],
            env={**os.environ, "PATH": path, "HOME": str(self.folder / "home"), **(environment or {})},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout.strip().split("\n")[-1], result.stderr

    def test_results(self):
        fine = [["PASSED", ENDED, PASSES]]
        late = ["FAILED", ENDED, PASSES, WAITED]
        table = [
            # Name, results of each target, exit code, closing line, what stderr has, what it lacks.
            ("all pass", {"//a:test": [["PASSED", ENDED, PASSES, PASSES, SKIPS]]}, 0, "2 passed, 0 failed, 1 skipped",
             ["== gate: builds, then runs 1 test programs", "the slowest: //a:test 2 s"], ["FLAKY", "FAILED"]),
            ("late, then passes", {"//a:test": [late, ["PASSED", ENDED, PASSES, PASSES]], "//b:test": fine}, 0,
             "3 passed, 0 failed, 0 skipped", ["FLAKY //a:test: Waits"], ["FAILED:"]),
            ("late twice", {"//a:test": [late, late]}, 1, "1 passed, 1 failed, 0 skipped",
             ["FAILED: gate: //a:test: Waits", "a second look at //a:test"], ["FLAKY"]),
            ("late before", {"//listed:test": [late]}, 1, "1 passed, 1 failed, 0 skipped",
             ["FAILED: gate: //listed:test: Waits", "no second look at //listed:test"], ["FLAKY"]),
            ("Bazel's limit", {"//a:test": [["TIMEOUT", ""], ["PASSED", ENDED, PASSES]]}, 0,
             "1 passed, 0 failed, 0 skipped", ["FLAKY //a:test: the time limit"], ["FAILED:"]),
            ("a wrong result", {"//a:test": [["FAILED", ENDED, PASSES, WRONG]]}, 1, "1 passed, 1 failed, 0 skipped",
             ["FAILED: gate: //a:test: Wrong"], ["FLAKY", "second look"]),
            ("late, and a wrong result", {"//a:test": [["FAILED", ENDED, WAITED_AND_WRONG]]}, 1,
             "0 passed, 1 failed, 0 skipped", ["FAILED: gate: //a:test: Waits"], ["FLAKY", "second look"]),
            ("late, and another is wrong", {"//a:test": [late], "//b:test": [["FAILED", ENDED, WRONG]]}, 1,
             "1 passed, 2 failed, 0 skipped", ["FAILED: gate: //a:test: Waits", "FAILED: gate: //b:test: Wrong"],
             ["FLAKY", "second look"]),
            ("an abort", {"//a:test": [["FAILED", "Aborted"]]}, 1, "0 passed, 1 failed, 0 skipped",
             ["FAILED: gate: //a:test: FAILED"], ["FLAKY", "second look"]),
            ("late, then a report of a sanitizer",
             {"//a:test": [["FAILED", ENDED + "==7==ERROR: LeakSanitizer: detected\n", WAITED]]}, 1,
             "0 passed, 1 failed, 0 skipped", ["ERROR: LeakSanitizer"], ["FLAKY", "second look"]),
            ("four late", {f"//{name}:test": [late] for name in "abcd"}, 1, "4 passed, 4 failed, 0 skipped",
             ["FAILED: gate: //d:test: Waits"], ["FLAKY", "second look"]),
        ]
        for name, tests, code, closing, has, lacks in table:
            with self.subTest(name):
                shutil.rmtree(self.folder / "testlogs", ignore_errors=True)
                got_code, got_closing, stderr = self.run_gate(tests)
                self.assertEqual((got_code, got_closing), (code, closing), stderr)
                for text in has:
                    self.assertIn(text, stderr)
                for text in lacks:
                    self.assertNotIn(text, stderr)

    def test_a_failed_build_is_shown(self):
        code, closing, stderr = self.run_gate({}, build=["ERROR: x.cc:1: no such thing", "and its second line"])
        self.assertEqual((code, closing), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertIn("FAILED: gate: bazel build ended with 1", stderr)
        self.assertIn("and its second line", stderr)

    def test_bad_input(self):
        for arguments, environment, text in [
            (["--al"], {}, "usage: tests/run"),
            ([], {"BERTH_RUN_MINUTES": "1h"}, "BERTH_RUN_MINUTES is '1h'"),
        ]:
            with self.subTest(text):
                code, _, stderr = self.run_gate({}, *arguments, environment=environment)
                self.assertEqual(code, 2)
                self.assertIn(text, stderr)

    def test_a_second_run_in_the_same_clone_is_refused(self):
        with open(self.folder / "tests/run", encoding="utf-8") as script:
            fcntl.flock(script, fcntl.LOCK_EX)
            code, _, stderr = self.run_gate({})
        self.assertEqual(code, 2)
        self.assertIn("another tests/run is at work", stderr)


if pathlib.Path(__file__).name == "bazel":
    sys.exit(player(sys.argv[1:]))

RUN = sys.argv.pop(1)
unittest.main()
