#include "client/gpu_ref.h"

#include "absl/strings/str_cat.h"
#include "client/internal/import.h"
#include "client/internal/lease_word.h"
#include "common/error.h"

namespace berth {

absl::string_view AccessErrorText(AccessError error) {
  switch (error) {
    case AccessError::kNone:
      return "none";
    case AccessError::kDeviceDropped:
      return "device state dropped";
    case AccessError::kDeviceShuttingDown:
      return "device shutting down";
    case AccessError::kContextRebuilt:
      return "context rebuilt";
    case AccessError::kBlockFreed:
      return "block freed";
    case AccessError::kLeaseEnded:
      return "lease ended";
    case AccessError::kOtherIncarnation:
      return "other incarnation";
  }
  return "unknown";
}

namespace internal {

AccessWords WordsOf(const Mapping& mapping) {
  const Import& import = *mapping.import_;
  const DeviceWords& device = import.core()->page().devices[import.block().device()];
  return {.page = &import.core()->page(),
          .lease = &import.lease(),
          .memory = import.block().export_kind() == v1::EXPORT_KIND_CUDA_IPC ? &device.context_generation
                                                                             : &device.generation,
          .device = import.block().device(),
          .generation = import.block().handle().generation(),
          .incarnation = import.block().handle().incarnation()};
}

absl::Status CheckElementSize(const Mapping& mapping, size_t element_size) {
  if (mapping.size() % element_size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a block of ", mapping.size(), " bytes is not a whole number of ", element_size, "-byte elements"));
}

absl::Status AccessStatus(AccessError error) {
  if (error == AccessError::kNone) return absl::OkStatus();
  return Refuse(Reason::kStale, "{why}", {{"why", AccessErrorText(error)}});
}

AccessError Explain(const AccessWords& words) {
  const DeviceWords& device = words.page->devices[words.device];
  if (device.dropped.load() != 0) return AccessError::kDeviceDropped;
  if (device.shutting_down.load() != 0) return AccessError::kDeviceShuttingDown;
  if (words.memory->load() != words.generation) return AccessError::kContextRebuilt;
  if (words.lease->load() == Lease::kFreed) return AccessError::kBlockFreed;
  if (words.lease->load() == Lease::kEnded) return AccessError::kLeaseEnded;
  if (words.page->incarnation.load() != words.incarnation) return AccessError::kOtherIncarnation;
  // It was shutting down a moment ago and is not any more: the others never take back what they said.
  return AccessError::kDeviceShuttingDown;
}

}  // namespace internal
}  // namespace berth
