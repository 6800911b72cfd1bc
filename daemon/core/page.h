// One page of a list.

#ifndef DAEMON_CORE_PAGE_H_
#define DAEMON_CORE_PAGE_H_

#include <cstdint>
#include <vector>

namespace berth::core {

// Which rows of a list: those whose key comes after `after`, at most `rows`, and no more once those taken name `parts`
// imports or processes.
struct PageRequest {
  uint64_t after = 0;
  uint64_t rows = UINT64_MAX;
  uint64_t parts = UINT64_MAX;
};

// Rows of a list, in its order.
template <typename View>
struct Page : std::vector<View> {
  // The key of the last row, and whether there are rows after it.
  uint64_t last = 0;
  bool more = false;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PAGE_H_
