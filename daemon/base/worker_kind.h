// WorkerKind: selects one of a device's two workers.

#ifndef DAEMON_BASE_WORKER_KIND_H_
#define DAEMON_BASE_WORKER_KIND_H_

#include <array>
#include <cstdint>

namespace berth {

enum class WorkerKind : uint32_t {
  // The permanent worker. It has no CUDA context; the memory that it allocates lives in fds.
  kMain = 0,
  // The context worker, which runs on demand. The memory that it allocates dies with it.
  kContext = 1,
};

inline constexpr std::array<WorkerKind, 2> kWorkerKinds = {WorkerKind::kMain, WorkerKind::kContext};

}  // namespace berth

#endif  // DAEMON_BASE_WORKER_KIND_H_
