#include "tests/bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace berth::bench {
namespace {

// Returns the logarithm of the probability of exactly `k` of `n` events, each with probability `q`.
double LogBinomial(double n, double k, double q) {
  return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) + k * std::log(q) +
         (n - k) * std::log1p(-q);
}

// Returns the largest k such that fewer than k of `n` samples lie below the quantile with probability at most `tail`.
size_t LowerRank(size_t n, double q, double tail) {
  double below = 0;
  size_t rank = 0;
  while (rank < n) {
    below += std::exp(LogBinomial(n, rank, q));
    if (below > tail) break;
    ++rank;
  }
  return rank;
}

}  // namespace

Estimate Quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  constexpr double kTail = 0.025;
  // 1-based ranks; 0 means that the sample is too small.
  const size_t low = std::max<size_t>(LowerRank(n, q, kTail), 1);
  const size_t high = n + 1 - std::max<size_t>(LowerRank(n, 1 - q, kTail), 1);
  const double position = q * (n - 1);
  const size_t at = static_cast<size_t>(position);
  const double rest = position - at;
  const double value = at + 1 < n ? samples[at] * (1 - rest) + samples[at + 1] * rest : samples[at];
  return {
      .value = value, .low = std::min(value, samples[low - 1]), .high = std::max(value, samples[high - 1])};
}

}  // namespace berth::bench
