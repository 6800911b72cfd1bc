// GpuRef<T>: a clonable, typed reference to a mapped block that is checked at use: Access() answers the
// pointer, or in which way it went stale, in a few nanoseconds and without a call.
//
//   absl::StatusOr<berth::GpuRef<float>> weights = berth::GpuRef<float>::Of(*mapping);
//   if (auto access = weights->Access()) {
//     Launch(access.data(), weights->size());
//   } else {
//     return access.status();
//   }

#ifndef CLIENT_GPU_REF_H_
#define CLIENT_GPU_REF_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/block.h"
#include "common/state_page.h"

namespace berth {

// Why an access was refused, in the order in which it is looked at.
enum class AccessError : uint8_t {
  kNone = 0,
  // The device is gone from this node for good.
  kDeviceDropped,
  // The device is being shut down.
  kDeviceShuttingDown,
  // What the block's memory lived in is not there any more: the device's memory was lost or reset; or, for a CUDA_IPC
  // block, the daemon's process that made it has ended.
  kContextRebuilt,
  // The block's owner freed it.
  kBlockFreed,
  // The session is over for this process.
  kLeaseEnded,
  // The daemon lost its ledger: handles of before mean nothing any more.
  kOtherIncarnation,
};

// "device state dropped", "device shutting down", "context rebuilt", "block freed", "lease ended", "other
// incarnation".
absl::string_view AccessErrorText(AccessError error);

// A pointer or the reason why there is none. A value of two words: made without an allocation.
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

// What a reference looks at, and what keeps that alive.
struct AccessWords {
  const StatePageLayout* page = nullptr;
  const std::atomic<Lease>* lease = nullptr;
  // The generation of what the block's memory lives in.
  const std::atomic<uint64_t>* memory = nullptr;
  uint32_t device = 0;
  uint64_t generation = 0;
  uint64_t incarnation = 0;
};

AccessWords WordsOf(const Mapping& mapping);
// Errors: kInvalidArgument when the block is not a whole number of T.
absl::Status CheckElementSize(const Mapping& mapping, size_t element_size);
absl::Status AccessStatus(AccessError error);
// Which of the reasons holds: what the fast path does not tell apart.
AccessError Explain(const AccessWords& words);

}  // namespace internal

// Copies share the mapping; thread-safe to use and to copy. T is what device memory can hold.
template <typename T>
class GpuRef {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  // Errors: kInvalidArgument when the block is not a whole number of T.
  static absl::StatusOr<GpuRef> Of(const Mapping& mapping) {
    absl::Status status = internal::CheckElementSize(mapping, sizeof(T));
    if (!status.ok()) return status;
    return GpuRef(mapping);
  }

  // Checks, in this order: device dropped, device shutting down, context rebuilt, block freed, lease ended,
  // other incarnation. The words are read one by one: what ends at the same moment may be seen or not.
  AccessResult<T> Access() const {
    constexpr auto kOrder = std::memory_order_acquire;
    const DeviceWords& device = words_.page->devices[words_.device];
    // One branch for the common case; which of the reasons it was is looked up after.
    const uint64_t stale = device.dropped.load(kOrder) | device.shutting_down.load(kOrder) |
                           (words_.memory->load(kOrder) ^ words_.generation) |
                           static_cast<uint64_t>(words_.lease->load(kOrder)) |
                           (words_.page->incarnation.load(kOrder) ^ words_.incarnation);
    if (stale == 0) [[likely]]
      return AccessResult<T>(static_cast<T*>(mapping_.data()));
    return AccessResult<T>(internal::Explain(words_));
  }

  // Elements.
  size_t size() const { return mapping_.size() / sizeof(T); }
  const Mapping& mapping() const { return mapping_; }

 private:
  explicit GpuRef(const Mapping& mapping) : mapping_(mapping), words_(internal::WordsOf(mapping)) {}

  Mapping mapping_;
  internal::AccessWords words_;
};

template <typename T>
absl::Status AccessResult<T>::status() const {
  return internal::AccessStatus(error_);
}

}  // namespace berth

#endif  // CLIENT_GPU_REF_H_
