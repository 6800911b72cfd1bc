#include "common/patience.h"

#include <stdlib.h>

#include <algorithm>

#include "absl/strings/numbers.h"

namespace berth {

int PatienceFactor() {
#ifdef NDEBUG
  return 1;
#else
  static const int factor = [] {
    const char* const text = ::getenv("BERTH_TEST_PATIENCE");
    int set = 1;
    return text != nullptr && absl::SimpleAtoi(text, &set) ? std::clamp(set, 1, 1'000) : 1;
  }();
  return factor;
#endif
}

int TestMilliseconds([[maybe_unused]] const char* variable) {
#ifdef NDEBUG
  return 0;
#else
  const char* const text = ::getenv(variable);
  int set = 0;
  return text != nullptr && absl::SimpleAtoi(text, &set) ? std::max(set, 0) : 0;
#endif
}

}  // namespace berth
