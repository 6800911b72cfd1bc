#include "tests/bench/measurement.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace berth::bench {
namespace {

// Formats three significant digits, never in scientific notation.
std::string Number(double value) {
  if (value == std::round(value) && std::abs(value) < 1e15) return absl::StrFormat("%.0f", value);
  const double magnitude = std::abs(value);
  if (magnitude >= 100) return absl::StrFormat("%.0f", value);
  if (magnitude >= 10) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.2f", value);
}

std::string WithInterval(const Estimate& estimate) {
  if (estimate.low == estimate.high) return Number(estimate.value);
  return absl::StrCat(Number(estimate.value), " [", Number(estimate.low), "-", Number(estimate.high), "]");
}

nlohmann::ordered_json ToJson(const Estimate& estimate) {
  return {{"value", estimate.value}, {"low", estimate.low}, {"high", estimate.high}};
}

std::string Verdict(const Measurement& measurement) {
  if (!measurement.bound.has_value()) return "-";
  return measurement.holds() ? "holds" : "short";
}

std::vector<double> RatiosOf(const Pairs& pairs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < pairs.ours.size(); ++i) ratios.push_back(pairs.ours[i] / pairs.theirs[i]);
  return ratios;
}

Measurement MakeComparison(std::string name, const Estimate& ours, std::string unit, absl::string_view against,
                           const Estimate& theirs, const Estimate& ratio, std::optional<double> bound) {
  std::string beside = absl::StrCat(against, " (", Number(theirs.value), " ", unit, ")");
  return {.name = std::move(name),
          .value = ours,
          .unit = std::move(unit),
          .against = std::move(beside),
          .ratio = ratio,
          .bound = bound};
}

}  // namespace

Measurement CompareRounds(std::string name, const std::vector<Pairs>& rounds, std::string unit,
                          absl::string_view against, std::optional<double> bound) {
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> ratios;
  for (const Pairs& pairs : rounds) {
    ours.push_back(Median(pairs.ours).value);
    theirs.push_back(Median(pairs.theirs).value);
    ratios.push_back(Median(RatiosOf(pairs)).value);
  }
  return MakeComparison(std::move(name), Median(ours), std::move(unit), against, Median(theirs),
                        Median(ratios), bound);
}

Measurement ComparePairs(std::string name, const Pairs& pairs, std::string unit, absl::string_view against,
                         std::optional<double> bound) {
  return MakeComparison(std::move(name), Median(pairs.ours), std::move(unit), against, Median(pairs.theirs),
                        Median(RatiosOf(pairs)), bound);
}

std::string FormatMeasurement(const Measurement& measurement, Format format) {
  if (format == Format::kJson) {
    nlohmann::ordered_json json = {
        {"name", measurement.name}, {"value", ToJson(measurement.value)}, {"unit", measurement.unit}};
    if (!measurement.against.empty()) json["against"] = measurement.against;
    if (measurement.ratio.has_value()) json["ratio"] = ToJson(*measurement.ratio);
    if (measurement.bound.has_value()) {
      json["bound"] = *measurement.bound;
      json["verdict"] = Verdict(measurement);
    }
    return json.dump();
  }
  return absl::StrCat(measurement.name, " | ", WithInterval(measurement.value), " | ", measurement.unit, " | ",
                      measurement.against.empty() ? "-" : measurement.against, " | ",
                      measurement.ratio ? WithInterval(*measurement.ratio) : "-", " | ",
                      measurement.bound ? Number(*measurement.bound) : "-", " | ", Verdict(measurement));
}

std::string FormatFailure(const std::string& name, const absl::Status& why, Format format) {
  if (format == Format::kJson) {
    return nlohmann::ordered_json{{"name", name}, {"verdict", "failed"}, {"error", why.ToString()}}.dump();
  }
  return absl::StrCat(name, " | - | - | - | - | - | failed: ", why.ToString());
}

}  // namespace berth::bench
