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

}  // namespace berth
