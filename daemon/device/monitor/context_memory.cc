#include "daemon/device/monitor/context_memory.h"

#include <unistd.h>

namespace berth {
namespace {

// A context takes 0.3 to 0.6 GiB: a value outside these limits includes other processes' memory.
constexpr Bytes kLeast = MiB(256);
constexpr Bytes kMost = GiB(1);

}  // namespace

Bytes MeasureContext(cuda::Nvml& nvml, const std::string& uuid, uint32_t pid, Bytes used_before) {
  if (const auto processes = nvml.Processes(uuid); processes.ok()) {
    for (const cuda::Nvml::Process& process : *processes) {
      if (process.pid == pid) return process.bytes;
    }
  }
  const auto memory = nvml.GetMemory(uuid);
  if (!memory.ok()) return Bytes(0);
  const Bytes more = SaturatingSub(memory->used, used_before);
  return more < kLeast || more > kMost ? Bytes(0) : more;
}

ContextMeter::ContextMeter(const std::string& uuid) {
  const absl::StatusOr<cuda::Nvml*> nvml = cuda::Nvml::Get();
  if (!nvml.ok()) return;
  const auto memory = (*nvml)->GetMemory(uuid);
  if (!memory.ok()) return;
  nvml_ = *nvml;
  uuid_ = uuid;
  used_before_ = memory->used;
}

Bytes ContextMeter::Measure() const {
  if (nvml_ == nullptr) return Bytes(0);
  return MeasureContext(*nvml_, uuid_, static_cast<uint32_t>(::getpid()), used_before_);
}

}  // namespace berth
