// GpuRef<T>: a copyable, typed reference to a mapped block, checked at each use. Access() returns the pointer, or the
// reason why the reference is stale. It takes a few nanoseconds and makes no call.
//
//   absl::StatusOr<berth::GpuRef<float>> weights = berth::GpuRef<float>::Of(*mapping);
//   if (auto access = weights->Access()) {
//     Launch(access.data(), weights->size());
//   } else {
//     return access.status();
//   }

#ifndef BERTH_GPU_REF_H_
#define BERTH_GPU_REF_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <berth/block.h>
#include <berth/state_page_layout.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth {

// Why an access failed, in the order of the checks.
enum class AccessError : uint8_t {
  kNone = 0,
  // The daemon that held the block's memory ended; the memory is lost.
  kBlockLost,
  // The device was removed from this node for good.
  kDeviceDropped,
  // The device is being shut down.
  kDeviceShuttingDown,
  // The context of the block's memory no longer exists: the device's memory was lost or reset; or, for a CUDA_IPC
  // block, the daemon process that made it has ended.
  kContextRebuilt,
  // The block's owner freed it.
  kBlockFreed,
  // The session is over for this process.
  kLeaseEnded,
  // The daemon lost its ledger: earlier handles are no longer valid.
  kOtherIncarnation,
};

// "block lost", "device state dropped", "device shutting down", "context rebuilt", "block freed", "lease ended", "other
// incarnation".
absl::string_view AccessErrorText(AccessError error);

// A pointer, or the reason why there is none. Two machine words, returned without an allocation.
template <typename T>
class AccessResult {
 public:
  explicit AccessResult(T* data) : data_(data) {}
  explicit AccessResult(AccessError error) : error_(error) {}

  explicit operator bool() const { return error_ == AccessError::kNone; }
  // Null after an error. For CUDA memory a device pointer.
  T* data() const { return data_; }
  AccessError error() const { return error_; }
  // OK, or kFailedPrecondition (STALE) with the text.
  absl::Status status() const;

 private:
  T* data_ = nullptr;
  AccessError error_ = AccessError::kNone;
};

namespace internal {

enum class Lease : uint64_t;

// The values that a reference checks. The Mapping owns their memory.
struct AccessValues {
  const StatePageLayout* page = nullptr;
  const std::atomic<Lease>* lease = nullptr;
  // The generation of the context in which the block's memory lives.
  const std::atomic<uint64_t>* memory = nullptr;
  uint32_t device = 0;
  uint64_t generation = 0;
  uint64_t incarnation = 0;
};

AccessValues AccessValuesOf(const Mapping& mapping);
// Errors: kInvalidArgument when the block's size is not a multiple of `element_size`.
absl::Status CheckElementSize(const Mapping& mapping, size_t element_size);
absl::Status AccessStatus(AccessError error);
// Returns which reason holds; the fast path does not distinguish them.
AccessError Explain(const AccessValues& values);

}  // namespace internal

// Copies share the mapping. Thread-safe to use and to copy. T is trivially copyable.
template <typename T>
class GpuRef {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Errors: kInvalidArgument when the block's size is not a multiple of sizeof(T).
  static absl::StatusOr<GpuRef> Of(const Mapping& mapping) {
    absl::Status status = internal::CheckElementSize(mapping, sizeof(T));
    if (!status.ok()) return status;
    return GpuRef(mapping);
  }

  // Checks, in this order: block lost, device dropped, device shutting down, context rebuilt, block freed, lease ended,
  // other incarnation. The values are read one by one: a concurrent end may or may not be seen.
  AccessResult<T> Access() const {
    constexpr auto kOrder = std::memory_order_acquire;
    const DeviceEntry& device = values_.page->devices[values_.device];
    // One branch for the common case; Explain() finds the reason afterwards.
    const uint64_t stale = device.dropped.load(kOrder) | device.shutting_down.load(kOrder) |
                           (values_.memory->load(kOrder) ^ values_.generation) |
                           static_cast<uint64_t>(values_.lease->load(kOrder)) |
                           (values_.page->incarnation.load(kOrder) ^ values_.incarnation);
    if (stale == 0) [[likely]]
      return AccessResult<T>(static_cast<T*>(mapping_.data()));
    return AccessResult<T>(internal::Explain(values_));
  }

  // Number of elements.
  size_t size() const { return mapping_.size() / sizeof(T); }
  const Mapping& mapping() const { return mapping_; }

 private:
  explicit GpuRef(const Mapping& mapping) : mapping_(mapping), values_(internal::AccessValuesOf(mapping)) {}

  Mapping mapping_;
  internal::AccessValues values_;
};

template <typename T>
absl::Status AccessResult<T>::status() const {
  return internal::AccessStatus(error_);
}

}  // namespace berth

#endif  // BERTH_GPU_REF_H_
