// Measurement: one measured line of the benchmarks' report, and whether it meets its bound.

#ifndef TESTS_BENCH_MEASUREMENT_H_
#define TESTS_BENCH_MEASUREMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tests/bench/statistics.h"

namespace berth::bench {

struct Measurement {
  std::string name;
  Estimate value;
  // Unit of the value, and of the bound where there is no ratio.
  std::string unit;
  // The reference of the comparison; empty where there is none.
  std::string against;
  // Computed pair by pair, never from two medians.
  std::optional<Estimate> ratio;
  // Upper bound, of the ratio where there is one, otherwise of the value. Unset where the measurement is only reported.
  std::optional<double> bound;

  // Whether the lower end of the interval is within the bound.
  bool holds() const { return !bound.has_value() || (ratio ? *ratio : value).low <= *bound; }
};

// Two interleaved series of the same length, in the same unit.
struct Pairs {
  std::vector<double> ours;
  std::vector<double> theirs;
};

// Makes the measurement of several rounds of pairs: the median of the rounds' medians, with its interval. Rounds differ
// more than pairs do, because the kernel's placement of a round's processes stays for the round. Requires: no round is
// empty.
Measurement CompareRounds(std::string name, const std::vector<Pairs>& rounds, std::string unit,
                          absl::string_view against, std::optional<double> bound);

// Makes the measurement of one round, `pairs`: the value is the median of `ours`, the ratio the median of ours to
// theirs, pair by pair.
Measurement ComparePairs(std::string name, const Pairs& pairs, std::string unit, absl::string_view against,
                         std::optional<double> bound);

enum class Format { kTable, kJson };

// Formats "name | value | unit | against | ratio | bound | holds or short", with intervals in brackets; or one JSON
// object.
std::string FormatMeasurement(const Measurement& measurement, Format format);

// Formats the line of a measurement that could not be measured.
std::string FormatFailure(const std::string& name, const absl::Status& why, Format format);

}  // namespace berth::bench

#endif  // TESTS_BENCH_MEASUREMENT_H_
