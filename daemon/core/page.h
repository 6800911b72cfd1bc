// One page of a list, and how it is put together.

#ifndef DAEMON_CORE_PAGE_H_
#define DAEMON_CORE_PAGE_H_

#include <cstdint>
#include <utility>
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

// Collects the rows of a page. Use, for each row in order: if (Full()) stop; Add().
template <typename View>
class PageBuilder {
 public:
  explicit PageBuilder(const PageRequest& request) : request_(request) {}

  // Whether the page takes no more. Asked about a row that there is.
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

#endif  // DAEMON_CORE_PAGE_H_
