// SessionFences implements FenceDaemon over a session's gRPC and channel.

#ifndef CLIENT_SDK_FENCES_SESSION_FENCES_H_
#define CLIENT_SDK_FENCES_SESSION_FENCES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/sdk/fences/fences.h"
#include "client/sdk/transport/session_core.h"

namespace berth::internal {

// Thread-safe.
class SessionFences final : public FenceDaemon {
 public:
  // Returns the session's fences, connected to the daemon. The pointer holds a reference to the session.
  static std::shared_ptr<Fences> Of(const std::shared_ptr<SessionCore>& core);

  ChannelId channel() const override { return core_.channel_id(); }
  bool over() const override { return !core_.Check().ok() || !core_.CheckStreams().ok(); }
  absl::StatusOr<OpenedStream> OpenStream(uint32_t device, bool default_stream) override;
  void CloseStream(uint32_t slot) override;
  absl::StatusOr<RemotePrepared> Prepare(uint32_t slot, absl::Span<const RemoteUse> uses,
                                         absl::Duration patience) override;
  absl::StatusOr<std::vector<BlockId>> Finish(UseId use, uint64_t value) override;
  void Abandon(UseId use) override;

 private:
  explicit SessionFences(SessionCore* core) : core_(*core) {}
  SessionCore& core_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_FENCES_SESSION_FENCES_H_
