#!/usr/bin/python3
"""tests/run counts, explains and repeats what it should, with a Bazel that plays results from a table.

Each test target of a case has one result per run. Bad input is named, and an interrupted run leaves nothing.
"""

import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
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


# Plays Bazel in the folder of a case, as PLAY_… of the environment say. The first call starts the server. No call may
# have the lock open, which the server would keep.
BAZEL = """#!/bin/sh
folder=${0%/bin/*}
pid=$folder/server/server.pid.txt
[ ! -e "/proc/$$/fd/9" ] || exit 98
if [ ! -e "$pid" ]; then
  mkdir -p "$folder/server"
  setsid sleep 600 >/dev/null 2>&1 &
  echo $! >"$pid"
fi
case "$1" in
  info) if [ "$2" = bazel-testlogs ]; then echo "$folder/testlogs"; else echo "$folder"; fi; exit "${PLAY_INFO:-0}" ;;
  query) [ -z "$PLAY_QUERY" ] || { echo "$PLAY_QUERY" >&2; exit 7; }; cat "$folder/tests.txt" ;;
  build)
    echo "$*" >>"$folder/builds"
    pgrep -x -c -g "$(ps -o pgid= -p $$ | tr -d " ")" bash >"$folder/processes"
    [ -z "$PLAY_BUILD" ] || { echo "$PLAY_BUILD"; exit 1; }
    [ -z "$PLAY_HANGS" ] || exec "$PLAY_TEST" "$@"
    ;;
  shutdown) [ -z "$PLAY_DEAF" ] || exit 1; kill -9 "$(cat "$pid")"; rm "$pid" ;;
  test) exec "$PLAY_TEST" "$@" ;;
esac
"""


def play_test(folder, arguments):
    """Plays `bazel test`: state.json maps targets to lists of [state, log, cases...]."""
    state = json.loads((folder / "state.json").read_text())
    with open(folder / "calls", "a", encoding="utf-8") as calls:
        calls.write(" ".join(arguments) + "\n")
    named = [argument for argument in arguments if argument.startswith("//") and not argument.endswith("/...")]
    code = 0
    for target in named or state:
        result, log, *cases = state[target].pop(0)
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


FINE = [["PASSED", ENDED, PASSES]]
LATE = ["FAILED", ENDED, PASSES, WAITED]
RESULTS = [
    # Name, results of each target, exit code, closing line, what stderr has, what it lacks.
    ("all pass", {"//a:test": [["PASSED", ENDED, PASSES, PASSES, SKIPS]]}, 0, "2 passed, 0 failed, 1 skipped",
     ["== gate: builds, then runs 1 test programs", "the slowest: //a:test 2 s"], ["FLAKY", "FAILED"]),
    ("late, then passes", {"//a:test": [LATE, ["PASSED", ENDED, PASSES, PASSES]], "//b:test": FINE}, 0,
     "3 passed, 0 failed, 0 skipped", ["FLAKY //a:test: Waits"], ["FAILED:"]),
    ("late twice", {"//a:test": [LATE, LATE]}, 1, "1 passed, 1 failed, 0 skipped",
     ["FAILED: gate: //a:test: Waits", "a second look at //a:test"], ["FLAKY"]),
    ("late before", {"//listed:test": [LATE]}, 1, "1 passed, 1 failed, 0 skipped",
     ["FAILED: gate: //listed:test: Waits", "no second look at //listed:test"], ["FLAKY"]),
    ("Bazel's limit", {"//a:test": [["TIMEOUT", ""], ["PASSED", ENDED, PASSES]]}, 0,
     "1 passed, 0 failed, 0 skipped", ["FLAKY //a:test: the time limit"], ["FAILED:"]),
    ("Bazel's limit after a wrong result", {"//a:test": [["TIMEOUT", "a_test.cc:7: Failure\nWrong\n"]]}, 1,
     "0 passed, 1 failed, 0 skipped", ["FAILED: gate: //a:test: TIMEOUT", "a_test.cc:7: Failure"],
     ["FLAKY", "second look"]),
    ("a wrong result", {"//a:test": [["FAILED", ENDED, PASSES, WRONG]]}, 1, "1 passed, 1 failed, 0 skipped",
     ["FAILED: gate: //a:test: Wrong"], ["FLAKY", "second look"]),
    ("late, and a wrong result", {"//a:test": [["FAILED", ENDED, WAITED_AND_WRONG]]}, 1,
     "0 passed, 1 failed, 0 skipped", ["FAILED: gate: //a:test: Waits"], ["FLAKY", "second look"]),
    ("late, and another is wrong", {"//a:test": [LATE], "//b:test": [["FAILED", ENDED, WRONG]]}, 1,
     "1 passed, 2 failed, 0 skipped", ["FAILED: gate: //a:test: Waits", "FAILED: gate: //b:test: Wrong"],
     ["FLAKY", "second look"]),
    ("an abort", {"//a:test": [["FAILED", "Aborted"]]}, 1, "0 passed, 1 failed, 0 skipped",
     ["FAILED: gate: //a:test: FAILED"], ["FLAKY", "second look"]),
    ("late after a crash of the broker",
     {"//a:test": [["FAILED", "berthd: broker exited: signal 6; restarting it\n" + ENDED, WAITED]]}, 1,
     "0 passed, 1 failed, 0 skipped", ["FAILED: gate: //a:test: Waits"], ["FLAKY", "second look"]),
    ("late after a kill of the broker",
     {"//a:test": [["FAILED", "berthd: broker exited: signal 9; restarting it\n" + ENDED, WAITED],
                   ["PASSED", ENDED, PASSES]]}, 0,
     "1 passed, 0 failed, 0 skipped", ["FLAKY //a:test: Waits"], ["FAILED:"]),
    ("late, then a report of a sanitizer",
     {"//a:test": [["FAILED", ENDED + "==7==ERROR: LeakSanitizer: detected\n", WAITED]]}, 1,
     "0 passed, 1 failed, 0 skipped", ["ERROR: LeakSanitizer"], ["FLAKY", "second look"]),
    ("four late", {f"//{name}:test": [LATE] for name in "abcd"}, 1, "4 passed, 4 failed, 0 skipped",
     ["FAILED: gate: //d:test: Waits"], ["FLAKY", "second look"]),
]


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for name in ("tests", "deploy", "bin", "home", "tmp"):
            (self.folder / name).mkdir()
        shutil.copy(RUN, self.folder / "tests/run")
        (self.folder / "tests/flaky").write_text("# None.\n//listed:test\n")
        self.write_program("deploy/install-packages", '#!/bin/sh\n[ ! -e "/proc/$$/fd/9" ] || exit 98\n')
        self.write_program("bin/bazel", BAZEL)

    def write_program(self, path, text):
        (self.folder / path).write_text(text)
        (self.folder / path).chmod(0o755)

    def start_gate(self, tests, *arguments, **environment):
        (self.folder / "state.json").write_text(json.dumps(tests))
        (self.folder / "tests.txt").write_text("".join(f"{target}\n" for target in tests))
        own = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "HOME": str(self.folder / "home"),
               "TMPDIR": str(self.folder / "tmp"), "PLAY_TEST": os.path.abspath(__file__)}
        return subprocess.Popen(
            [self.folder / "tests/run", *arguments], env={**os.environ, **own, **environment}, start_new_session=True,
            # A shell cannot trap a signal that was ignored when it started, as that of a job in the background is.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end_gate(self, gate, left="nothing"):
        """Returns the exit code, the closing line and stderr of a run that has left nothing but this prefix's files."""
        server = self.folder / "server/server.pid.txt"
        stdout, stderr = gate.communicate(timeout=60)
        names = [file.name for file in (self.folder / "tmp").iterdir()]
        self.assertEqual([name for name in names if not name.startswith(left)], [], stderr)
        if server.exists():
            words = pathlib.Path("/proc", server.read_text(), "cmdline")
            # A zombie has none.
            self.assertFalse(words.exists() and words.read_text(), stderr)
            server.unlink()
        with open(self.folder / "tests/run", encoding="utf-8") as script:
            fcntl.flock(script, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return gate.returncode, stdout.strip().split("\n")[-1], stderr

    def run_gate(self, tests, *arguments, **environment):
        return self.end_gate(self.start_gate(tests, *arguments, **environment))

    def check_result(self, tests, code, closing, has, lacks):
        got_code, got_closing, stderr = self.run_gate(tests)
        self.assertEqual((got_code, got_closing), (code, closing), stderr)
        for text in has:
            self.assertIn(text, stderr)
        for text in lacks:
            self.assertNotIn(text, stderr)

    def test_all_repeats_process_tests_with_the_products_own_bounds(self):
        (self.folder / "daemon").mkdir()
        self.write_program("daemon/berthd", "#!/bin/sh\necho no CUDA headers\n")
        code, closing, stderr = self.run_gate({"//a:test": [["PASSED", ENDED, PASSES]] * 4}, "--all")
        self.assertEqual((code, closing), (0, "4 passed, 0 failed, 0 skipped"), stderr)
        self.assertIn("== own bounds: builds, then runs 1 test programs", stderr)
        calls = (self.folder / "calls").read_text().splitlines()
        short = [call for call in calls if "--test_env=BERTH_TEST_PATIENCE=1" in call]
        self.assertEqual((len(calls), len(short)), (4, 1), calls)
        self.assertEqual(short[0].split()[-2:], ["//tests/e2e/...", "//daemon/supervisor/..."])
        self.assertIn("--test_tag_filters=-soak,-gpu ", short[0])

    def test_a_failed_build_is_shown(self):
        code, closing, stderr = self.run_gate({}, PLAY_BUILD="ERROR: x.cc:1: no such thing\nand its second line")
        self.assertEqual((code, closing), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertIn("FAILED: gate: bazel build ended with 1", stderr)
        self.assertIn("and its second line", stderr)

    def test_a_failed_target_is_explained_last(self):
        log = "a_test.cc:7: Failure\nExpected: 1\n" + "".join(f"line {i}\n" for i in range(60)) + ENDED
        _, _, stderr = self.run_gate({"//a:test": [["FAILED", log, PASSES, WRONG]], "//b:test": FINE})
        said = stderr[stderr.index("the slowest: "):].splitlines()
        self.assertEqual(said[1:5], ["== gate: //a:test: FAILED", "a_test.cc:7: Failure", "Expected: 1", "line 0"])
        self.assertEqual(said[-32:-29], ["-- the end of its log:", "line 31", "line 32"])
        self.assertEqual(said[-2:], [ENDED.strip(), "FAILED: gate: //a:test: Wrong"])

    def test_the_ten_slowest_targets_are_listed(self):
        _, _, stderr = self.run_gate({f"//{name}:test": list(FINE) for name in "abcdefghijkl"})
        self.assertEqual(re.search("the slowest: .*", stderr)[0].count(":test 2 s"), 10, stderr)

    def test_bad_input(self):
        self.write_program("bin/df", "#!/bin/sh\necho Avail; echo 17\n")
        for arguments, environment, text in [
            (["--al"], {}, "usage: tests/run"),
            ([], {"BERTH_RUN_MINUTES": "1h"}, "BERTH_RUN_MINUTES is '1h': expected a whole number from 0"),
            (["--fuzz"], {"BERTH_FUZZ_SECONDS": "0"}, "BERTH_FUZZ_SECONDS is '0': expected a whole number from 1"),
            (["--simulate"], {"BERTH_SIM_SEEDS": "-1"}, "BERTH_SIM_SEEDS is '-1': expected a whole number from 1"),
            ([], {"HOME": ""}, "HOME is not set"),
            ([], {"HOME": "/proc/1"}, "cannot write to /proc/1/.cache/berth-bazel"),
            ([], {"BERTH_RUN_MINUTES": ""}, "17 MiB are free on the disk of "),
        ]:
            with self.subTest(text):
                code, _, stderr = self.run_gate({}, *arguments, **environment)
                self.assertEqual(code, 2)
                self.assertIn("tests/run: " + text if text[:5] != "usage" else text, stderr)

    def test_a_disk_that_a_run_filled_is_named(self):
        self.write_program("bin/df", """#!/bin/sh
            echo Avail; if [ -e "$HOME/full" ]; then echo 17; else echo 5000; touch "$HOME/full"; fi
            """)
        code, closing, stderr = self.run_gate({"//a:test": [["FAILED", ENDED, WRONG]]})
        self.assertEqual((code, closing), (1, "0 passed, 1 failed, 0 skipped"), stderr)
        self.assertIn("tests/run: less than 512 MiB are free on the disk of ", stderr)

    def test_the_list_of_late_targets_has_targets_only(self):
        (self.folder / "tests/flaky").write_text("# Late twice.\n\n//a:test\n//b:test  # on Monday\n")
        code, _, stderr = self.run_gate({})
        self.assertEqual(code, 2)
        self.assertIn("tests/run: tests/flaky has line 4://b:test  # on Monday: expected //folder:target", stderr)

    def test_a_server_without_an_answer_is_named_and_ended(self):
        # Where Bazel has the pid of the clone's server.
        home = self.folder / "home/.cache/bazel/_bazel_me"
        home.mkdir(parents=True)
        (home / hashlib.md5(os.fsencode(self.folder.resolve())).hexdigest()).symlink_to(self.folder)
        # Ends the first command of Bazel as `timeout` ends one that takes too long.
        self.write_program("bin/timeout", """#!/bin/sh
            case "$*" in *" bazel info output_base") "$5" "$6" "$7" >/dev/null; exit 124 ;; esac
            shift 4; exec "$@"
            """)
        code, closing, stderr = self.run_gate({}, USER="me")
        self.assertEqual((code, closing), (1, "0 passed, 1 failed, 0 skipped"), stderr)
        self.assertRegex(stderr, "FAILED: bazel info did not answer in 300 s: .*, or end its server, pid [0-9]+\n")

    def test_a_server_older_than_the_packages_is_ended(self):
        old = subprocess.Popen(["sleep", "600"])
        self.addCleanup(old.wait)
        self.addCleanup(old.kill)
        server = self.folder / "server/server.pid.txt"
        server.parent.mkdir()
        server.write_text(str(old.pid))
        os.utime(server, (0, 0))
        # The run ends a younger server than itself in any case.
        self.write_program("bin/ps", f"""#!/bin/sh
            case "$*" in "-o etimes= -p {old.pid}") echo 1000 ;; *) exec /usr/bin/ps "$@" ;; esac
            """)
        code, _, stderr = self.run_gate({"//a:test": FINE})
        self.assertEqual(code, 0, stderr)
        self.assertEqual(old.wait(60), -signal.SIGKILL)

    def test_findings_of_a_fuzzer_stay(self):
        (self.folder / "tests/fuzz").mkdir()
        self.write_program("tests/fuzz/a_test", "#!/bin/sh\n")
        self.write_program("tests/fuzz/a_fuzz", """#!/bin/sh
            [ -z "$PLAY_CRASH" ] || echo bad >"$(echo "$*" | sed 's/.*-artifact_prefix=\\([^ ]*\\) .*/\\1/')crash"
            exit 77
            """)
        fuzzers = {"//tests/fuzz:a_fuzz": []}
        self.assertIn("FAILED: fuzz: a_fuzz ended without a finding", self.run_gate(fuzzers, "--fuzz")[2])
        gate = self.start_gate(fuzzers, "--fuzz", PLAY_CRASH="yes")
        code, closing, stderr = self.end_gate(gate, left="berth-findings-")
        self.assertEqual((code, closing), (1, "0 passed, 1 failed, 0 skipped"))
        kept = pathlib.Path(re.search("FAILED: fuzz: a_fuzz, see (.*)", stderr)[1])
        self.assertEqual((kept / "find-a_fuzz-crash").read_text(), "bad\n")

    def test_gcc_builds_little_where_no_query_names_the_libraries(self):
        _, _, stderr = self.run_gate({"//a:test": FINE * 4}, "--all", PLAY_QUERY="ERROR: no such package")
        self.assertIn("FAILED: gcc: bazel query names no libraries", stderr)
        with_gcc = [line for line in (self.folder / "builds").read_text().splitlines() if "--config=gcc" in line]
        self.assertEqual([line.split()[-1] for line in with_gcc], ["//daemon:berthd"])

    def test_what_a_run_lacks_is_one_failure(self):
        fine = {"//a:test": [["PASSED", ENDED, PASSES]]}
        self.assertIn("FAILED: bazel info ended with 36", self.run_gate(fine, PLAY_INFO="36")[2])
        _, _, stderr = self.run_gate({}, "--fuzz", PLAY_QUERY="ERROR: no such package")
        self.assertIn("FAILED: fuzz: bazel query names no fuzzers", stderr)
        # What Bazel builds does not depend on a query.
        code, closing, stderr = self.run_gate(fine, PLAY_QUERY="ERROR: no such package")
        self.assertEqual((code, closing), (0, "1 passed, 0 failed, 0 skipped"))
        self.assertIn("which bazel query cannot count: ERROR: no such package", stderr)
        self.write_program("deploy/install-packages", "#!/bin/sh\nexit 3\n")
        code, closing, stderr = self.run_gate({})
        self.assertEqual((code, closing), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertIn("FAILED: deploy/install-packages ended with 3", stderr)

    def test_an_interrupted_run_leaves_nothing(self):
        for arguments, deaf, sent in (([], "", signal.SIGINT), (["--loaded"], "yes", signal.SIGINT),
                                      ([], "", signal.SIGTERM), ([], "", signal.SIGHUP)):
            with self.subTest(deaf=deaf, sent=sent):
                gate = self.start_gate({}, *arguments, PLAY_HANGS="yes", PLAY_DEAF=deaf)
                while not (self.folder / "hangs").exists():
                    self.assertIsNone(gate.poll())
                    time.sleep(0.01)
                (self.folder / "hangs").unlink()
                # As ^C on a terminal, or the terminal's end.
                os.killpg(gate.pid, sent)
                code, _, stderr = self.end_gate(gate)
                self.assertEqual(code, 130)
                self.assertIn("tests/run: interrupted", stderr)

    def test_a_killed_run_does_not_hinder_the_next(self):
        gate = self.start_gate({}, PLAY_HANGS="yes")
        while not (self.folder / "hangs").exists():
            self.assertIsNone(gate.poll())
            time.sleep(0.01)
        os.killpg(gate.pid, signal.SIGKILL)
        gate.communicate(timeout=60)
        server = self.folder / "server/server.pid.txt"
        os.kill(int(server.read_text()), signal.SIGKILL)
        server.unlink()
        # Nothing but its own folder.
        left = list((self.folder / "tmp").iterdir())
        self.assertEqual(len(left), 1)
        shutil.rmtree(left[0])
        code, closing, stderr = self.run_gate({"//a:test": FINE})
        self.assertEqual((code, closing), (0, "1 passed, 0 failed, 0 skipped"), stderr)

    def test_a_run_whose_time_is_over_names_what_did_not_run(self):
        # Ends each `bazel test` as `timeout` ends one that takes too long.
        self.write_program("bin/timeout", """#!/bin/sh
            case "$*" in *" bazel test "*) "$5" "$6" //a:test; exit 124 ;; esac
            shift 4; exec "$@"
            """)
        tests = {"//a:test": [["PASSED", ENDED, PASSES]], "//b:test": [], "//c:test": []}
        code, closing, stderr = self.run_gate(tests, BERTH_RUN_MINUTES="7")
        self.assertEqual((code, closing), (1, "1 passed, 1 failed, 0 skipped"), stderr)
        self.assertIn("FAILED: gate: the run's 7 minutes are over; 2 of 3 tests did not run", stderr)
        self.assertIn("not run: //b:test\nnot run: //c:test\n", stderr)
        self.assertNotIn("not run: //a:test", stderr)

    def test_a_run_builds_all_first_and_shows_its_progress(self):
        self.run_gate({"//a:test": FINE})
        builds, calls = self.folder / "builds", self.folder / "calls"
        needs_gpu = os.path.exists("/dev/nvidiactl") or os.environ.get("BERTH_REQUIRE_CUDA") == "1"
        self.assertLess(builds.stat().st_mtime_ns, calls.stat().st_mtime_ns)
        # Each 30 seconds: there is no terminal.
        for file in (builds, calls):
            text = file.read_text()
            self.assertIn(" --curses=no --show_progress_rate_limit=30 ", text)
            # Without a GPU not even what needs one is built.
            self.assertRegex(text, r" --build_tag_filters=(-soak(?:,-gpu)?) --test_tag_filters=\1 //\.\.\.$")
            self.assertEqual("-gpu" in text, not needs_gpu)

    def test_a_run_says_how_long_the_last_took(self):
        fine = {"//a:test": [["PASSED", ENDED, PASSES]]}
        self.assertIn("; the first here: ", self.run_gate(fine)[2])
        seconds = self.folder / "home/.cache/berth/seconds-gate"
        self.assertLess(int(seconds.read_text()), 60)
        seconds.write_text("421\n")
        self.assertIn("; the last took 8 minutes here\n", self.run_gate(fine)[2])
        # A failed run took no time that another one would.
        seconds.write_text("61\n")
        self.run_gate({"//a:test": [["FAILED", ENDED, WRONG]]})
        self.assertEqual(seconds.read_text(), "61\n")

    def test_the_disk_cache_is_bounded(self):
        cache = self.folder / "home/.cache/berth-bazel/cas"
        cache.mkdir(parents=True)
        for age, name in enumerate(["newest", "middle", "oldest"]):
            # Without blocks on a disk.
            with open(cache / name, "wb") as file:
                file.truncate(9 << 30)
            os.utime(cache / name, (1000 - age, 1000 - age))
        self.run_gate({"//a:test": [["PASSED", ENDED, PASSES]]})
        self.assertEqual(sorted(file.name for file in cache.iterdir()), ["middle", "newest"])

    def test_a_loaded_run_has_four_processes_beside_it(self):
        found = []
        for arguments in ([], ["--loaded"]):
            code, _, stderr = self.run_gate({"//a:test": [["PASSED", ENDED, PASSES]]}, *arguments)
            self.assertEqual(code, 0, stderr)
            found.append(int((self.folder / "processes").read_text()))
        self.assertEqual(found[1] - found[0], 4)

    def test_a_second_run_in_the_same_clone_is_refused(self):
        with open(self.folder / "tests/run", encoding="utf-8") as script:
            fcntl.flock(script, fcntl.LOCK_EX)
            gate = self.start_gate({})
            _, stderr = gate.communicate(timeout=60)
        self.assertEqual(gate.returncode, 2)
        self.assertIn("another tests/run is at work", stderr)


if "PLAY_TEST" in os.environ and sys.argv[1] == "build":
    # A shell that starts a program may leave SIGINT pending until that program ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pathlib.Path(os.environ["HOME"], "../hangs").touch()
    time.sleep(600)
elif "PLAY_TEST" in os.environ:
    sys.exit(play_test(pathlib.Path(os.environ["HOME"]).parent, sys.argv[1:]))



def add_result(name, *result):
    setattr(RunTest, "test_result_" + re.sub(r"\W+", "_", name), lambda self: self.check_result(*result))


for row in RESULTS:
    add_result(*row)


def load_tests(loader, tests, pattern):
    """Returns the tests of Bazel's shard; all tests where there is none."""
    shard, shards = (int(os.environ.get(f"TEST_{name}", default))
                     for name, default in (("SHARD_INDEX", 0), ("TOTAL_SHARDS", 1)))
    if "TEST_SHARD_STATUS_FILE" in os.environ:
        pathlib.Path(os.environ["TEST_SHARD_STATUS_FILE"]).touch()
    return unittest.TestSuite([test for suite in tests for test in suite][shard::shards])


RUN = sys.argv.pop(1)
unittest.main()
