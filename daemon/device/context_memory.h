// What a CUDA context takes of its device's memory, for the account: as NVML sees it.

#ifndef DAEMON_DEVICE_CONTEXT_MEMORY_H_
#define DAEMON_DEVICE_CONTEXT_MEMORY_H_

#include <cstdint>
#include <string>

#include "common/bytes.h"
#include "common/cuda/nvml.h"

namespace berth {

// The bytes of process `pid`, which has a context and nothing else. Where NVML does not show it under that pid (it
// tells those of the outermost PID namespace), what the device has less than it had `before`, if a context may take as
// much: others allocate and free meanwhile. Else, and where NVML does not answer, 0: not known.
Bytes MeasureContext(cuda::Nvml& nvml, const std::string& uuid, uint32_t pid, Bytes used_before);

// ContextMeter looks at a device before this process has a context there, and once it has.
class ContextMeter {
 public:
  // CUDA's device `ordinal`; where there is none, nothing is measured.
  explicit ContextMeter(uint32_t ordinal);
  Bytes Measure() const;

 private:
  cuda::Nvml* nvml_ = nullptr;
  std::string uuid_;
  Bytes used_before_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_CONTEXT_MEMORY_H_
