// HostBackend makes blocks of ordinary memory: the device of machines without a GPU, and every test's.

#ifndef DAEMON_DEVICE_HOST_BACKEND_H_
#define DAEMON_DEVICE_HOST_BACKEND_H_

#include <string>

#include "daemon/device/memory_backend.h"

namespace berth {

// Blocks are memfds of mode 0400, sealed against growing, shrinking and further seals. Their pages are the
// kernel's to find when they are first touched: `total` bounds the size of one block, the budget in front of
// the worker their sum.
class HostBackend : public MemoryBackend {
 public:
  // `uuid` names the device in refusals.
  HostBackend(std::string uuid, Bytes total);

  absl::StatusOr<UniqueFd> Create(Bytes bytes) override;
  Bytes granularity() const override { return Bytes(kBlockGranularity); }
  BackendKind kind() const override { return BackendKind::kHost; }

 private:
  const std::string uuid_;
  const Bytes total_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_HOST_BACKEND_H_
