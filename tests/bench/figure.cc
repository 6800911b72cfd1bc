#include "tests/bench/figure.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace berth::bench {
namespace {

// Three significant digits, never in scientific notation.
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

std::string Verdict(const Figure& figure) {
  if (!figure.bound.has_value()) return "-";
  return figure.holds() ? "holds" : "short";
}

std::vector<double> RatiosOf(const Pairs& pairs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < pairs.ours.size(); ++i) ratios.push_back(pairs.ours[i] / pairs.theirs[i]);
  return ratios;
}

Figure MakeComparison(std::string name, const Estimate& ours, std::string unit, absl::string_view against,
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

Figure CompareRounds(std::string name, const std::vector<Pairs>& rounds, std::string unit,
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

Figure ComparePairs(std::string name, const Pairs& pairs, std::string unit, absl::string_view against,
                    std::optional<double> bound) {
  return MakeComparison(std::move(name), Median(pairs.ours), std::move(unit), against, Median(pairs.theirs),
                        Median(RatiosOf(pairs)), bound);
}

std::string FormatFigure(const Figure& figure, Format format) {
  if (format == Format::kJson) {
    nlohmann::ordered_json json = {
        {"name", figure.name}, {"value", ToJson(figure.value)}, {"unit", figure.unit}};
    if (!figure.against.empty()) json["against"] = figure.against;
    if (figure.ratio.has_value()) json["ratio"] = ToJson(*figure.ratio);
    if (figure.bound.has_value()) {
      json["bound"] = *figure.bound;
      json["verdict"] = Verdict(figure);
    }
    return json.dump();
  }
  return absl::StrCat(figure.name, " | ", WithInterval(figure.value), " | ", figure.unit, " | ",
                      figure.against.empty() ? "-" : figure.against, " | ",
                      figure.ratio ? WithInterval(*figure.ratio) : "-", " | ",
                      figure.bound ? Number(*figure.bound) : "-", " | ", Verdict(figure));
}

std::string FormatFailure(const std::string& name, const absl::Status& why, Format format) {
  if (format == Format::kJson) {
    return nlohmann::ordered_json{{"name", name}, {"verdict", "failed"}, {"error", why.ToString()}}.dump();
  }
  return absl::StrCat(name, " | - | - | - | - | - | failed: ", why.ToString());
}

}  // namespace berth::bench
