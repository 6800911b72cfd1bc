#include <iostream>
#include <regex>

#include "tests/bench/measurements/measurements.h"

namespace berth::bench {

int RunMeasurements(const std::vector<NamedMeasurements>& all, const Programs& programs, const std::string& filter,
                    Format format) {
  const std::regex wanted(filter);
  int bad = 0;
  for (const NamedMeasurements& measurements : all) {
    if (!std::regex_search(measurements.name, wanted)) continue;
    const absl::StatusOr<std::vector<Measurement>> taken = measurements.take(programs);
    if (!taken.ok()) {
      std::cout << FormatFailure(measurements.name, taken.status(), format) << std::endl;
      ++bad;
      continue;
    }
    for (const Measurement& measurement : *taken) {
      std::cout << FormatMeasurement(measurement, format) << std::endl;
      if (!measurement.holds()) ++bad;
    }
  }
  return bad;
}

}  // namespace berth::bench
