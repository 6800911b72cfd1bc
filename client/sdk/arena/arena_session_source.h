// ArenaSessionSource: supplies an arena with blocks that a session leases from the daemon.

#ifndef CLIENT_SDK_ARENA_ARENA_SESSION_SOURCE_H_
#define CLIENT_SDK_ARENA_ARENA_SESSION_SOURCE_H_

#include <atomic>
#include <memory>
#include <utility>

#include <berth/arena_options.h>
#include <berth/block.h>
#include <berth/session.h>

#include "client/sdk/arena/arena_source.h"

namespace berth::internal {

// Thread-safe. Leases hold a reference to the session.
class ArenaSessionSource : public ArenaSource {
 public:
  ArenaSessionSource(std::shared_ptr<Session> session, const ArenaOptions& options)
      : session_(std::move(session)),
        block_{.device = options.device,
               .device_uuid = options.device_uuid,
               .label = options.label,
               .export_kinds = options.export_kinds} {}

  absl::StatusOr<std::unique_ptr<ArenaLease>> Lease(Bytes bytes) override;
  absl::StatusOr<std::shared_ptr<StreamProgress>> MakeProgress() override;

  // Kind of the memory leased so far.
  BlockKind kind() const { return kind_.load(std::memory_order_relaxed); }

 private:
  const std::shared_ptr<Session> session_;
  const BlockOptions block_;
  std::atomic<BlockKind> kind_ = BlockKind::kHost;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_ARENA_ARENA_SESSION_SOURCE_H_
