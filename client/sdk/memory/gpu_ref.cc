#include <berth/gpu_ref.h>

#include <berth/end_notice.h>
#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/memory/atomic_lease.h"
#include "client/sdk/memory/import.h"

namespace berth {

absl::string_view AccessErrorText(AccessError error) {
  switch (error) {
    case AccessError::kNone:
      return "none";
    case AccessError::kBlockLost:
      return "block lost";
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

AccessValues AccessValuesOf(const Mapping& mapping) {
  const Import& import = *mapping.import_;
  const DeviceEntry& device = import.core()->page().devices[import.block().device()];
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
  if (error == AccessError::kBlockLost) return Refuse(Reason::kStale, "block {why}", {{"why", kLostWithDaemon}});
  return Refuse(Reason::kStale, "{why}", {{"why", AccessErrorText(error)}});
}

AccessError Explain(const AccessValues& values) {
  // Check this first: the page of a stopped daemon reports forever that its devices shut down.
  if (values.lease->load() == Lease::kLost) return AccessError::kBlockLost;
  const DeviceEntry& device = values.page->devices[values.device];
  if (device.dropped.load() != 0) return AccessError::kDeviceDropped;
  if (device.shutting_down.load() != 0) return AccessError::kDeviceShuttingDown;
  if (values.memory->load() != values.generation) return AccessError::kContextRebuilt;
  if (values.lease->load() == Lease::kFreed) return AccessError::kBlockFreed;
  if (values.lease->load() == Lease::kEnded) return AccessError::kLeaseEnded;
  if (values.page->incarnation.load() != values.incarnation) return AccessError::kOtherIncarnation;
  // The device was shutting down a moment ago and no longer is: the other conditions are never reverted.
  return AccessError::kDeviceShuttingDown;
}

}  // namespace internal
}  // namespace berth
