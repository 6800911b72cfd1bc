// PmrResource: an arena of host memory as a std::pmr::memory_resource.
//
//   absl::StatusOr<std::unique_ptr<berth::PmrResource>> resource = berth::PmrResource::Create(arena);
//   if (!resource.ok()) return resource.status();
//   std::pmr::vector<float> staging(1 << 20, resource->get());

#ifndef BERTH_PMR_RESOURCE_H_
#define BERTH_PMR_RESOURCE_H_

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <utility>

#include <berth/arena.h>

#include "absl/status/statusor.h"

namespace berth {

// Thread-safe. Holds a reference to the arena; free everything allocated through the resource before destroying it. As
// its interface requires, and as the only place in the SDK, it reports a failure by throwing std::bad_alloc. An
// alignment above the arena's also fails.
class PmrResource : public std::pmr::memory_resource {
 public:
  // Errors: UNSUPPORTED for an arena of device memory, which containers would write to from the host.
  static absl::StatusOr<std::unique_ptr<PmrResource>> Create(std::shared_ptr<Arena> arena);

 private:
  explicit PmrResource(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* pointer, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  const std::shared_ptr<Arena> arena_;
};

}  // namespace berth

#endif  // BERTH_PMR_RESOURCE_H_
