// LaunchRecorder: records which blocks a launch uses. The launch then waits for earlier users of these blocks, and
// later users wait for the launch. Works on any stream, in any process.
//
//   berth::LaunchRecorder launch(*stream);
//   launch.Read(weights);                              // Mappings
//   launch.Write(output);
//   if (auto status = launch.Preflight(); !status.ok()) return status;   // queues the waits
//   kernel<<<…, my_stream>>>(…);
//   if (auto status = launch.Commit(); !status.ok()) return status;      // queues the launch's end
//
// Between Preflight() and Commit() other users wait for this launch, one second at most by default: do nothing slow
// there.

#ifndef BERTH_LAUNCH_RECORDER_H_
#define BERTH_LAUNCH_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include <berth/block.h>
#include <berth/ids.h>
#include <berth/stream.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace berth {

namespace internal {
enum class UseAccess : uint8_t;
struct Recordable;
}  // namespace internal

// How a recorder treats memory that does not belong to Berth and that it cannot order.
enum class RecorderMode {
  // Preflight() refuses the launch.
  kStrict,
  // Preflight() ignores such memory: its user orders it.
  kPermissive,
};

// One launch. The stream must outlive the recorder. Recorded mappings must stay mapped until Commit(), and for the sake
// of the work itself until the work has run. Neither movable nor copyable. Used by one thread at a time.
class LaunchRecorder {
 public:
  // How long Preflight() waits for open uses of other launches.
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  explicit LaunchRecorder(Stream& stream, RecorderMode mode = RecorderMode::kStrict);
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;
  // Abandons a launch that was preflighted and not committed. Requires: no part of it was launched.
  ~LaunchRecorder();

  // Record a use; a block may be recorded several times. Use Write() for a fresh output. `kWrite` means that the launch
  // overwrites all previous content: afterwards a block torn by a dead writer is consistent again. Preflight() reports
  // an invalid use; Commit() reports a use that was recorded too late.
  void Read(const Mapping& mapping);
  void Write(const Mapping& mapping);
  void ReadWrite(const Mapping& mapping);
  // Records a use of memory that does not belong to Berth.
  void Untracked();

  // Makes the stream wait for all work that must precede the launch. If Preflight() fails before the daemon has
  // answered, nothing is queued; waits queued before a later failure are harmless.
  // Errors: STREAM_MISUSE (memory that does not belong to Berth, in strict mode; a block of another session; a write
  // through a read-only mapping; a second preflight); STALE; BLOCK_IN_USE, naming the user that did not finish in time;
  // the driver's.
  absl::Status Preflight(absl::Duration patience = kPatience);
  // Reports the launch as queued. An empty recorder commits nothing.
  // Errors: STREAM_MISUSE without a preflight, or if uses were recorded after it: the preflighted uses are committed
  // anyway. Those of the driver or the daemon: other users are then blocked from the blocks as long as this process
  // lives.
  absl::Status Commit();

  // Blocks of the launch whose writer died mid-write, as known after Preflight(), and updated by Commit().
  const std::vector<BlockId>& torn() const;

 private:
  friend class LaunchRecorderPeer;
  class Launch;

  void RecordUse(const internal::Recordable& used, internal::UseAccess access);
  Launch& launch();
  const Launch& launch() const;

  // Holds the Launch in place: an allocation for each launch would cost as much as the launch's steps.
  static constexpr size_t kLaunchBytes = 384;
  alignas(std::max_align_t) std::byte launch_[kLaunchBytes];
};

}  // namespace berth

#endif  // BERTH_LAUNCH_RECORDER_H_
