// PmrResource: an arena of host memory as a std::pmr::memory_resource.
//
//   absl::StatusOr<std::unique_ptr<berth::PmrResource>> resource = berth::PmrResource::Create(arena);
//   if (!resource.ok()) return resource.status();
//   std::pmr::vector<float> staging(1 << 20, resource->get());

#ifndef CLIENT_PMR_RESOURCE_H_
#define CLIENT_PMR_RESOURCE_H_

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <utility>

#include "absl/status/statusor.h"
#include "client/arena.h"

namespace berth {

// Thread-safe. Keeps the arena; what was allocated through it is freed before it goes. As that interface wants
// it, and nowhere else in the SDK, a refusal is thrown as std::bad_alloc: also for an alignment above the
// arena's.
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

#endif  // CLIENT_PMR_RESOURCE_H_
