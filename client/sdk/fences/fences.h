// Fences: the state that all streams and recorders of one session share, and their requests to the daemon.

#ifndef CLIENT_SDK_FENCES_FENCES_H_
#define CLIENT_SDK_FENCES_FENCES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/sdk/fences/fence_pages.h"
#include "client/sdk/fences/fence_tracker.h"
#include "client/sdk/memory/atomic_lease.h"

namespace berth::internal {

// A stream that the daemon has opened.
struct OpenedStream {
  // Slot of the stream's fence values in this process's page.
  uint32_t slot = 0;
  // 0: the device's default stream.
  uint32_t id = 0;
  // Last value of the slot; the stream's values continue from it.
  uint64_t last = 0;
};

struct RemoteUse {
  BlockId block;
  UseAccess access = UseAccess::kRead;
};

// A fence value to wait for, of another process or of this one.
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

// The daemon's side of fences. Thread-safe. Errors are those of the daemon: proto/berth/v1/fence.proto.
class FenceDaemon {
 public:
  virtual ~FenceDaemon() = default;
  // This process's channel ID.
  virtual ChannelId channel() const = 0;
  // Whether the session is over for this process.
  virtual bool over() const = 0;
  // Opens a stream. On success the session's Fences hold this process's page.
  virtual absl::StatusOr<OpenedStream> OpenStream(uint32_t device, bool default_stream) = 0;
  virtual void CloseStream(uint32_t slot) = 0;
  virtual absl::StatusOr<RemotePrepared> Prepare(uint32_t slot, absl::Span<const RemoteUse> uses,
                                                 absl::Duration patience) = 0;
  // Returns the torn blocks of the use.
  virtual absl::StatusOr<std::vector<BlockId>> Finish(UseId use, uint64_t value) = 0;
  virtual void Abandon(UseId use) = 0;
};

struct Fences {
  FencePages pages;
  FenceTracker tracker;
  // Guards the creation of `daemon` at first use.
  std::once_flag once;
  std::unique_ptr<FenceDaemon> daemon;
};

// A mapped block, as a recorder needs it. The objects that it points to live as long as the mapping.
struct Recordable {
  // The fences of the session whose streams may use the block.
  const Fences* fences = nullptr;
  TrackedBlock* block = nullptr;
  const AtomicLease* lease = nullptr;
  bool read_only = false;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_FENCES_FENCES_H_
