// Fence types: streams, how a launch uses blocks, and what the launch must wait for. Plain values.

#ifndef DAEMON_CORE_TYPES_FENCE_TYPES_H_
#define DAEMON_CORE_TYPES_FENCE_TYPES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/time/time.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/request_traits.h"

namespace berth::core {

// One stream of one process: a slot of its fence page (common/wire/fence_page.h).
struct StreamKey {
  ChannelId channel;
  uint32_t slot = 0;

  friend auto operator<=>(const StreamKey&, const StreamKey&) = default;
};
template <typename Archive>
void Fields(Archive& archive, StreamKey& value) {
  archive(value.channel, value.slot);
}

// The fence values of one stream: common/wire/fence_page.h.
struct FenceValues {
  uint64_t done = 0;
  uint64_t begun = 0;
  uint64_t ended = 0;
  // Returns whether the process may have been writing a block that it tracks alone.
  bool in_doubt() const { return ended < begun; }
};

// Reads the fence values of a stream that is not gone; all 0 if the stream is unknown. For the core they are an input,
// like the time.
using ReadFenceValues = std::function<FenceValues(StreamKey)>;

// Bit 0: reads. Bit 1: writes.
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
void Payload(auto& add, const BlockUse& use) { add(use.block, use.access); }

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

// Result of Prepare(): the client may launch once it has waited for all of `waits`.
struct Prepared {
  static constexpr size_t kResponseIndex = 14;

  UseId use;
  // At most one per stream.
  std::vector<FenceWait> waits;
  // Blocks of the launch that a process had begun to write when it died.
  std::vector<BlockId> torn;
};
template <typename Archive>
void Fields(Archive& archive, Prepared& value) {
  archive(value.use, value.waits, value.torn);
}
bool Undo(const UndoStep& undo, const Prepared& result);

// A use of a block by the process that tracked the block alone, reported when that process hands the block over. It is
// not known to have ended; it ends when the stream's `done` reaches `value`.
struct HandedMark {
  uint32_t slot = 0;
  uint64_t value = 0;
  Access access = Access::kRead;
};

struct OpenStreamRequest {
  uint32_t device = 0;
  bool default_stream = false;
};
void Payload(auto& add, const OpenStreamRequest& request) { add(request.device, request.default_stream); }

struct CloseStreamRequest {
  uint32_t slot = 0;
};
void Payload(auto& add, const CloseStreamRequest& request) { add(request.slot); }

struct PrepareUseRequest {
  uint32_t slot = 0;
  std::vector<BlockUse> uses;
  // Time to wait while other processes' uses are open; at most Limits::prepare_patience.
  absl::Duration patience = absl::InfiniteDuration();
};
void Payload(auto& add, const PrepareUseRequest& request) { add(request.slot, request.uses); }

struct FinishUseRequest {
  UseId use;
  uint64_t value = 0;
};
void Payload(auto& add, const FinishUseRequest& request) { add(request.use, request.value); }

struct AbandonUseRequest {
  UseId use;
};
void Payload(auto& add, const AbandonUseRequest& request) { add(request.use); }

struct StreamView {
  // Rises with every stream opened.
  uint64_t number = 0;
  StreamKey stream;
  ProcessInfo process;
  uint32_t device = 0;
  // 0 is the device's default stream.
  uint32_t id = 0;
  absl::Time since;
  FenceValues fence_values;
  // Value of the last finished use, which `words.done` eventually reaches.
  uint64_t last_value = 0;
  uint64_t open_uses = 0;
  // Start of the oldest open use; InfiniteFuture if none is open.
  absl::Time open_since = absl::InfiniteFuture();
};

struct OpenStreamResult {
  static constexpr size_t kResponseIndex = 12;

  StreamKey stream;
  uint32_t id = 0;
  // The slot's last value; new values continue from it.
  uint64_t last_value = 0;
  // Blocks that the process has imported and that other processes share.
  std::vector<BlockId> shared;
};
template <typename Archive>
void Fields(Archive& archive, OpenStreamResult& value) {
  archive(value.stream, value.id, value.last_value, value.shared);
}
bool Undo(const UndoStep& undo, const OpenStreamResult& result);

struct CloseStreamResult {
  static constexpr size_t kResponseIndex = 13;
};
template <typename Archive>
void Fields(Archive&, CloseStreamResult&) {}
inline bool Undo(const UndoStep&, const CloseStreamResult&) { return false; }

struct FinishUseResult {
  static constexpr size_t kResponseIndex = 15;

  std::vector<BlockId> torn;
};
template <typename Archive>
void Fields(Archive& archive, FinishUseResult& value) {
  archive(value.torn);
}
inline bool Undo(const UndoStep&, const FinishUseResult&) { return false; }

struct AbandonUseResult {
  static constexpr size_t kResponseIndex = 16;
};
template <typename Archive>
void Fields(Archive&, AbandonUseResult&) {}
inline bool Undo(const UndoStep&, const AbandonUseResult&) { return false; }

// ---- Kinds of requests (request_traits.h) ----------------------------------------------------------------

template <>
struct RequestTraits<OpenStreamRequest> {
  using Result = OpenStreamResult;
  static constexpr uint64_t kKind = 7;
};
template <>
struct RequestTraits<CloseStreamRequest> {
  using Result = CloseStreamResult;
  static constexpr uint64_t kKind = 8;
};
template <>
struct RequestTraits<PrepareUseRequest> {
  using Result = Prepared;
  static constexpr uint64_t kKind = 9;
};
template <>
struct RequestTraits<FinishUseRequest> {
  using Result = FinishUseResult;
  static constexpr uint64_t kKind = 10;
};
template <>
struct RequestTraits<AbandonUseRequest> {
  using Result = AbandonUseResult;
  static constexpr uint64_t kKind = 11;
};

using FenceResults = ResultList<OpenStreamResult, CloseStreamResult, Prepared, FinishUseResult, AbandonUseResult>;

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_FENCE_TYPES_H_
