#include <iostream>
#include <regex>

#include "tests/bench/figures.h"

namespace berth::bench {

int RunFigures(const std::vector<NamedFigures>& all, const Programs& programs, const std::string& filter,
               Format format) {
  const std::regex wanted(filter);
  int bad = 0;
  for (const NamedFigures& figures : all) {
    if (!std::regex_search(figures.name, wanted)) continue;
    const absl::StatusOr<std::vector<Figure>> taken = figures.take(programs);
    if (!taken.ok()) {
      std::cout << FormatFailure(figures.name, taken.status(), format) << std::endl;
      ++bad;
      continue;
    }
    for (const Figure& figure : *taken) {
      std::cout << FormatFigure(figure, format) << std::endl;
      if (!figure.holds()) ++bad;
    }
  }
  return bad;
}

}  // namespace berth::bench
