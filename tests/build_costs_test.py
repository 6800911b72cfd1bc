#!/usr/bin/python3
"""tests/build_costs adds up what Clang writes beside each object."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest


def event(name, seconds, detail=""):
    return {"name": name, "dur": seconds * 1_000_000, "args": {"detail": detail}}


class BuildCostsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.objects = pathlib.Path(folder.name)

    def write_trace(self, path, *events):
        (self.objects / path).parent.mkdir(parents=True, exist_ok=True)
        (self.objects / path).write_text(json.dumps({"traceEvents": events}))

    def count(self):
        return subprocess.run(
            [sys.executable, SCRIPT, self.objects], check=False, capture_output=True, text=True)

    def test_sources_and_headers_have_their_sums(self):
        self.write_trace("a/_objs/a/a.pic.json", event("Total ExecuteCompiler", 5), event("Source", 2, "a/x.h"))
        self.write_trace("a/_objs/b/b.json", event("Total ExecuteCompiler", 7), event("Source", 1, "./a/x.h"))
        # The same source for a program and for a shared library: the longer time counts.
        self.write_trace("a/_objs/b/b.pic.json", event("Total ExecuteCompiler", 6))
        lines = self.count().stdout.splitlines()
        self.assertEqual(lines[0], "2 sources, 12 s")
        rows = [line.split() for line in lines]
        self.assertLess(rows.index(["7.0", "a/b.cc"]), rows.index(["5.0", "a/a.cc"]))
        self.assertIn(["3.0", "2", "a/x.h"], rows)

    def test_twenty_of_each_are_shown(self):
        for i in range(30):
            self.write_trace(f"a/_objs/s{i}/s{i}.json", event("Total ExecuteCompiler", 100 + i),
                             event("Source", 1 + i, f"a/h{i}.h"))
        shown = self.count().stdout
        self.assertEqual((shown.count(".cc\n"), shown.count(".h\n")), (20, 20), shown)
        self.assertIn("129.0  a/s29.cc", shown)
        self.assertNotIn("a/s9.cc", shown)

    def test_a_build_without_traces_is_named(self):
        result = self.count()
        self.assertEqual(result.returncode, 1)
        self.assertIn("has no traces: build with --disk_cache= --copt=-ftime-trace first", result.stderr)


SCRIPT = sys.argv.pop(1)
unittest.main()
