#!/usr/bin/env python3
"""Draws the ratio of a permit's acquire and release to two echoes, from tests/bench/results, as SVG on stdout.

    tests/bench/plot_permits.py >docs/internals/permit_ratio.svg

A line of the plot is a row of build_machine.csv or h200.csv, and a dot with its bar is one run's ratio with its 95 %
interval. tests/docs checks that the committed picture is the one of the committed rows.
"""

import csv
import pathlib
import re
import xml.sax.saxutils

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
MEASUREMENT = "permit acquire+release"
BOUND = 1.15
FILES = [("build_machine.csv", "2 cores, no GPU", "#1f6fb4"), ("h200.csv", "GPU host", "#c4571b")]

LEFT, RIGHT, TOP, ROW, WIDTH = 330, 20, 46, 22, 760
LOW, HIGH = 0.4, 1.4


def rows_of(file):
    """Returns the rows of the measurement by date, with the rows below them that repeat it ("the same")."""
    found, inside, commit = [], False, ""
    with open(RESULTS / file, encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            inside = row["figure"].startswith(MEASUREMENT) or (inside and row["figure"].startswith("the same"))
            commits = ", ".join(re.findall(r"at ([0-9a-f]{7})\b", row["figure"]))
            # "There" refers to the row above.
            commit = commits or (commit if re.search(r"\bthere\b", row["figure"]) else "")
            if inside:
                found.append(row | {"commit": commit})
    return sorted(found, key=lambda row: row["date"], reverse=True)


def runs_of(row):
    """Returns (value, low, high) of each run of a row."""
    runs = re.findall(r"([\d.]+) \[([\d.]+)-([\d.]+)\]", row["ratio"])
    assert runs, f"no ratio with an interval: {row}"
    return [tuple(float(number) for number in run) for run in runs]


def label_of(row):
    calls = "release was a call" if "both were calls" in row["figure"] else ""
    return "  ".join(part for part in (row["date"], row["commit"], calls) if part)


def x_of(ratio):
    return round(LEFT + (WIDTH - LEFT - RIGHT) * (ratio - LOW) / (HIGH - LOW), 1)


def text(x, y, words, anchor="start", colour="#222"):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{xml.sax.saxutils.escape(words)}</text>'


def main():
    groups = [(host, colour, rows_of(file)) for file, host, colour in FILES]
    bottom = TOP + ROW * sum(len(rows) + 1 for _, _, rows in groups)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 30}" font-family="sans-serif" '
             'font-size="12">', f'<rect width="{WIDTH}" height="{bottom + 30}" fill="#fff"/>',
             text(10, 20, "Permit acquire and release: ratio to two echoes on the same machine, newest first")]
    for tenth in range(5, 15):
        x = x_of(tenth / 10)
        lines.append(f'<path d="M{x} {TOP - 8}V{bottom}" stroke="#ddd"/>' +
                     text(x, bottom + 18, f"{tenth / 10:.1f}", "middle"))
    x = x_of(BOUND)
    lines.append(f'<path d="M{x} {TOP - 8}V{bottom}" stroke="#b00" stroke-dasharray="4 3"/>' +
                 text(x, TOP - 12, f"bound {BOUND}", "middle", "#b00"))
    y = TOP
    for host, colour, rows in groups:
        lines.append(text(10, y + 15, host, colour=colour))
        for row in rows:
            y += ROW
            lines.append(text(24, y + 15, label_of(row)))
            runs = runs_of(row)
            for number, (value, low, high) in enumerate(runs):
                at = round(y + 11 + 4 * (number - (len(runs) - 1) / 2), 1)
                lines.append(f'<path d="M{x_of(low)} {at}H{x_of(high)}" stroke="{colour}"/>'
                             f'<circle cx="{x_of(value)}" cy="{at}" r="2.2" fill="{colour}"/>')
        y += ROW
    print("\n".join(lines + ["</svg>"]))


if __name__ == "__main__":
    main()
