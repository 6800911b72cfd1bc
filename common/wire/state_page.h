// The node's state page: a memfd from which every client reads, without a call, whether its leases are still valid. The
// supervisor creates it and holds the writable fd; the broker writes through it; clients map a read-only reopening.

#ifndef COMMON_WIRE_STATE_PAGE_H_
#define COMMON_WIRE_STATE_PAGE_H_

#include <berth/state_page_layout.h>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// Creates the page: zeroed except for the magic number, sealed. Returns the writable fd.
absl::StatusOr<UniqueFd> CreateStatePage();

// A mapping of the page. Movable; unmaps when destroyed. Thread-safe through the atomics.
class StatePage {
 public:
  // Errors: kInvalidArgument if `fd` is no state page.
  static absl::StatusOr<StatePage> MapReadOnly(int fd);
  static absl::StatusOr<StatePage> MapWritable(int fd);

  StatePage(StatePage&& other) noexcept : layout_(other.layout_) { other.layout_ = nullptr; }
  StatePage& operator=(StatePage&&) = delete;
  ~StatePage();

  const StatePageLayout& operator*() const { return *layout_; }
  const StatePageLayout* operator->() const { return layout_; }
  // Requires: mapped writable.
  StatePageLayout& writable() { return *layout_; }

 private:
  explicit StatePage(StatePageLayout* layout) : layout_(layout) {}
  static absl::StatusOr<StatePage> Map(int fd, int protection);
  StatePageLayout* layout_;
};

}  // namespace berth

#endif  // COMMON_WIRE_STATE_PAGE_H_
