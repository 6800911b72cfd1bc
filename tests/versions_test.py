#!/usr/bin/python3
"""The object that each link has as an input changes with the version of each package that decides an output."""

import pathlib
import sys
import unittest


class VersionsTest(unittest.TestCase):
    def test_the_object_has_each_version_of_the_header(self):
        lines = HEADER.read_bytes().splitlines()
        self.assertGreater(len(lines), 10)
        for library in LIBRARIES:
            text = library.read_bytes()
            for line in lines:
                self.assertIn(line, text, library)


HEADER, *LIBRARIES = (pathlib.Path(path) for path in sys.argv[1:])
assert LIBRARIES
unittest.main(argv=sys.argv[:1])
