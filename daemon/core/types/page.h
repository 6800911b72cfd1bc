// One page of a list, and its builder.

#ifndef DAEMON_CORE_TYPES_PAGE_H_
#define DAEMON_CORE_TYPES_PAGE_H_

#include <cstdint>
#include <utility>
#include <vector>

namespace berth::core {

// Selects list entries with a key above `after`, at most `rows` of them. Selection also stops once the selected entries
// contain `parts` imports or processes.
struct PageRequest {
  uint64_t after = 0;
  uint64_t rows = UINT64_MAX;
  uint64_t parts = UINT64_MAX;
};

// Entries of a list, in its order.
template <typename View>
struct Page : std::vector<View> {
  // Key of the last entry, and whether further entries follow.
  uint64_t last = 0;
  bool more = false;
};

// Collects the entries of a page. Usage, for each entry in order: if (Full()) stop; Add().
template <typename View>
class PageBuilder {
 public:
  explicit PageBuilder(const PageRequest& request) : request_(request) {}

  // Returns whether the page is full. Call it only if another entry exists: a full page then sets `more`.
  bool Full() {
    page_.more = page_.size() >= request_.rows || parts_ >= request_.parts;
    return page_.more;
  }
  void Add(uint64_t key, uint64_t parts, View view) {
    page_.last = key;
    parts_ += parts;
    page_.push_back(std::move(view));
  }
  Page<View> Build() { return std::move(page_); }

 private:
  const PageRequest request_;
  Page<View> page_;
  uint64_t parts_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_PAGE_H_
