// Fences: what the streams and recorders of one session share, and what they ask of the daemon.

#ifndef CLIENT_INTERNAL_FENCES_H_
#define CLIENT_INTERNAL_FENCES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/internal/fence_pages.h"
#include "client/internal/fence_tracker.h"
#include "client/internal/lease_word.h"
#include "common/ids.h"

namespace berth::internal {

// A stream as the daemon opened it.
struct OpenedStream {
  // Its words in this process's page.
  uint32_t slot = 0;
  // 0 is the device's default stream.
  uint32_t id = 0;
  // What the slot's values go on from.
  uint64_t last = 0;
};

struct RemoteUse {
  BlockId block;
  UseAccess access = UseAccess::kRead;
};

// A word of another process's to wait for, or of this one's own.
struct RemoteWait {
  ChannelId owner;
  uint32_t slot = 0;
  uint64_t value = 0;
};

struct RemotePrepared {
  UseId use;
  std::vector<RemoteWait> waits;
  std::vector<BlockId> torn;
};

// The daemon's side of fences. Thread-safe. Errors are the daemon's: proto/berth/v1/fence.proto.
class FenceDaemon {
 public:
  virtual ~FenceDaemon() = default;
  // This process's channel.
  virtual ChannelId channel() const = 0;
  // Whether the session is over for this process.
  virtual bool over() const = 0;
  // When this returns well, the session's Fences have this process's page.
  virtual absl::StatusOr<OpenedStream> OpenStream(uint32_t device, bool default_stream) = 0;
  virtual void CloseStream(uint32_t slot) = 0;
  virtual absl::StatusOr<RemotePrepared> Prepare(uint32_t slot, absl::Span<const RemoteUse> uses,
                                                 absl::Duration patience) = 0;
  // Returns the blocks of the use that are torn.
  virtual absl::StatusOr<std::vector<BlockId>> Finish(UseId use, uint64_t value) = 0;
  virtual void Abandon(UseId use) = 0;
};

struct Fences {
  FencePages pages;
  FenceTracker tracker;
  // Set by the first who needs it.
  std::once_flag once;
  std::unique_ptr<FenceDaemon> daemon;
};

// A mapped block, as a recorder wants it; what it refers to lives as long as the mapping.
struct Recordable {
  // Whose streams may use it.
  const Fences* fences = nullptr;
  TrackedBlock* block = nullptr;
  const LeaseWord* lease = nullptr;
  bool read_only = false;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_FENCES_H_
