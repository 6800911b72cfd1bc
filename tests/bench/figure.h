// Figure: one measured line of the benchmarks' report, and whether it keeps its bound.

#ifndef TESTS_BENCH_FIGURE_H_
#define TESTS_BENCH_FIGURE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tests/bench/statistics.h"

namespace berth::bench {

struct Figure {
  std::string name;
  Estimate value;
  // Of the value, and of the bound where there is no ratio.
  std::string unit;
  // What the value is compared with; empty where it is not.
  std::string against;
  // Taken pair by pair, never of two medians.
  std::optional<Estimate> ratio;
  // Upper, on the ratio where there is one, else on the value. None where the figure is only told.
  std::optional<double> bound;

  // Whether the lower end of the interval is within the bound.
  bool holds() const { return !bound.has_value() || (ratio ? *ratio : value).low <= *bound; }
};

// Two interleaved series of the same length, in the same unit.
struct Pairs {
  std::vector<double> ours;
  std::vector<double> theirs;
};

// The figure of several rounds of pairs: of each round the medians, of those the median and its interval.
// Rounds differ more than pairs do, because where the kernel puts a round's processes stays for the round.
// Requires: no round is empty.
Figure CompareRounds(std::string name, const std::vector<Pairs>& rounds, std::string unit,
                     absl::string_view against, std::optional<double> bound);

// The figure of one round, `pairs`: the value is the median of ours, the ratio the median of ours to theirs,
// pair by pair.
Figure ComparePairs(std::string name, const Pairs& pairs, std::string unit, absl::string_view against,
                    std::optional<double> bound);

enum class Format { kTable, kJson };

// "name | value | unit | against | ratio | bound | holds or short", intervals in brackets; or one JSON
// object.
std::string FormatFigure(const Figure& figure, Format format);

// The line of a figure that could not be taken.
std::string FormatFailure(const std::string& name, const absl::Status& why, Format format);

}  // namespace berth::bench

#endif  // TESTS_BENCH_FIGURE_H_
