#include <berth/pmr_resource.h>

#include <algorithm>
#include <new>

#include <berth/error.h>

namespace berth {

absl::StatusOr<std::unique_ptr<PmrResource>> PmrResource::Create(std::shared_ptr<Arena> arena) {
  if (arena->kind() != BlockKind::kHost) {
    return Refuse(Reason::kUnsupported, "no {capability}: the arena's memory is on a device",
                  {{"capability", "std::pmr::memory_resource"}});
  }
  return std::unique_ptr<PmrResource>(new PmrResource(std::move(arena)));
}

void* PmrResource::do_allocate(size_t bytes, size_t alignment) {
  if (alignment > arena_->alignment().count()) throw std::bad_alloc();
  // A zero-size request is valid here, and gets an address of its own.
  const absl::StatusOr<void*> pointer = arena_->Allocate(Bytes(std::max(bytes, size_t{1})));
  if (!pointer.ok()) throw std::bad_alloc();
  return *pointer;
}

void PmrResource::do_deallocate(void* pointer, size_t, size_t) { arena_->Free(pointer).IgnoreError(); }

}  // namespace berth
