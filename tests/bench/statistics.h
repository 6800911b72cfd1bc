// Order statistics of measurements, with the interval that the sample supports.

#ifndef TESTS_BENCH_STATISTICS_H_
#define TESTS_BENCH_STATISTICS_H_

#include <vector>

namespace berth::bench {

// An estimate and the ends of its 95 % interval.
struct Estimate {
  double value = 0;
  double low = 0;
  double high = 0;
};

// Returns the `q` quantile (0 < q < 1) of `samples` with the distribution-free interval of its order statistics. This
// works for any distribution, because the number of samples below the true quantile is binomial. Where the sample is
// too small for 95 %, the interval is the whole sample. Requires: not empty.
Estimate Quantile(std::vector<double> samples, double q);

inline Estimate Median(std::vector<double> samples) { return Quantile(std::move(samples), 0.5); }

}  // namespace berth::bench

#endif  // TESTS_BENCH_STATISTICS_H_
