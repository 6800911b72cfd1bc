// The vocabulary of fences: streams, what a launch does to blocks, and what it has to wait for. Plain values.

#ifndef DAEMON_CORE_FENCE_TYPES_H_
#define DAEMON_CORE_FENCE_TYPES_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "daemon/core/caller.h"

namespace berth::core {

// One stream of one process: a slot of its fence page (common/fence_page.h).
struct StreamKey {
  ChannelId channel;
  uint32_t slot = 0;

  friend auto operator<=>(const StreamKey&, const StreamKey&) = default;
};
template <typename Archive>
void Fields(Archive& archive, StreamKey& value) {
  archive(value.channel, value.slot);
}

// What the words of a stream say: common/fence_page.h.
struct StreamWords {
  uint64_t done = 0;
  uint64_t begun = 0;
  uint64_t ended = 0;
  // Whether the process may have been at work on a block that it tracks alone.
  bool in_doubt() const { return ended < begun; }
};

// Reads the words of a stream that is not gone: 0 where nothing is known of it. The core asks it as it is
// told the time.
using ReadWords = std::function<StreamWords(StreamKey)>;

// Two bits: reads, writes.
enum class Access : uint8_t { kRead = 1, kWrite = 2, kReadWrite = 3 };
constexpr auto ArchivedValues(Access) { return std::pair(Access::kRead, Access::kReadWrite); }

constexpr bool Writes(Access access) { return access != Access::kRead; }
constexpr Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}

// One block of a launch.
struct BlockUse {
  BlockId block;
  Access access = Access::kRead;
};
template <typename Archive>
void Fields(Archive& archive, BlockUse& value) {
  archive(value.block, value.access);
}

// Wait until the stream's `done` is at least `value`.
struct FenceWait {
  StreamKey stream;
  uint64_t value = 0;

  friend bool operator==(const FenceWait&, const FenceWait&) = default;
};
template <typename Archive>
void Fields(Archive& archive, FenceWait& value) {
  archive(value.stream, value.value);
}

// A launch may be made once it has waited.
struct Prepared {
  UseId use;
  // At most one per stream.
  std::vector<FenceWait> waits;
  // Blocks of the launch's that a dead process had begun to write.
  std::vector<BlockId> torn;
};
template <typename Archive>
void Fields(Archive& archive, Prepared& value) {
  archive(value.use, value.waits, value.torn);
}

// A use of a block by a process that tracked it alone, told when it hands the block over: not known to have ended, and
// ended when the stream's `done` is at `value`.
struct HandedMark {
  uint32_t slot = 0;
  uint64_t value = 0;
  Access access = Access::kRead;
};

struct OpenStreamRequest {
  uint32_t device = 0;
  bool default_stream = false;
};

struct CloseStreamRequest {
  uint32_t slot = 0;
};

struct PrepareUseRequest {
  uint32_t slot = 0;
  std::vector<BlockUse> uses;
  // How long to wait while others' uses are open; no longer than Limits::prepare_patience.
  absl::Duration patience = absl::InfiniteDuration();
};

struct FinishUseRequest {
  UseId use;
  uint64_t value = 0;
};

struct AbandonUseRequest {
  UseId use;
};

struct StreamView {
  // Rises with every stream opened.
  uint64_t number = 0;
  StreamKey stream;
  ProcessInfo process;
  uint32_t device = 0;
  // 0 is the device's default stream.
  uint32_t id = 0;
  absl::Time since;
  StreamWords words;
  // The last use that was finished: `words.done` comes to it.
  uint64_t last_value = 0;
  uint64_t open_uses = 0;
  // Of the oldest open use; InfiniteFuture for none.
  absl::Time open_since = absl::InfiniteFuture();
};

struct OpenStreamResult {
  StreamKey stream;
  uint32_t id = 0;
  // What the slot's values go on from.
  uint64_t last_value = 0;
  // Blocks that the process has imported and others share.
  std::vector<BlockId> shared;
};
template <typename Archive>
void Fields(Archive& archive, OpenStreamResult& value) {
  archive(value.stream, value.id, value.last_value, value.shared);
}

struct CloseStreamResult {};
template <typename Archive>
void Fields(Archive&, CloseStreamResult&) {}

struct FinishUseResult {
  std::vector<BlockId> torn;
};
template <typename Archive>
void Fields(Archive& archive, FinishUseResult& value) {
  archive(value.torn);
}

struct AbandonUseResult {};
template <typename Archive>
void Fields(Archive&, AbandonUseResult&) {}

}  // namespace berth::core

#endif  // DAEMON_CORE_FENCE_TYPES_H_
