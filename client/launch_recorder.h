// LaunchRecorder: says which blocks a launch uses, and so has it wait for whoever used them before, and
// whoever uses them next wait for it. On any stream, in any process.
//
//   berth::LaunchRecorder launch(*stream);
//   launch.Read(weights);                              // Mappings
//   launch.Write(output);
//   if (auto status = launch.Preflight(); !status.ok()) return status;   // queues the waits
//   kernel<<<…, my_stream>>>(…);
//   if (auto status = launch.Commit(); !status.ok()) return status;      // queues the launch's end
//
// Between Preflight() and Commit() others wait for this one, a second at the most by default: so nothing slow
// in there.

#ifndef CLIENT_LAUNCH_RECORDER_H_
#define CLIENT_LAUNCH_RECORDER_H_

#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/block.h"
#include "client/internal/fences.h"
#include "client/stream.h"
#include "common/ids.h"

namespace berth {

// What to do about memory that is not Berth's, and that nothing can order.
enum class RecorderMode {
  // Preflight() refuses the launch.
  kStrict,
  // It is passed over: its user orders it.
  kPermissive,
};

// One launch. The stream must outlive it, and what is noted must stay mapped until it is committed (and until the work
// has run, for the work's sake). Move nothing, copy nothing; one thread at a time.
class LaunchRecorder {
 public:
  // Others' open uses are waited for so long.
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  explicit LaunchRecorder(Stream& stream, RecorderMode mode = RecorderMode::kStrict)
      : stream_(stream), mode_(mode) {}
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;
  // Abandons what was preflighted and not committed: nothing of it may have been launched.
  ~LaunchRecorder();

  // Notes a use; a block may be noted several times. A fresh output is written. `kWrite` means that whatever
  // was there is written over: after that, a block torn by a dead writer is whole again. What is wrong with a
  // use is said by Preflight(), or by Commit() for what was noted too late.
  void Read(const Mapping& mapping) { Note(internal::RecordableOf(mapping), internal::UseAccess::kRead); }
  void Write(const Mapping& mapping) { Note(internal::RecordableOf(mapping), internal::UseAccess::kWrite); }
  void ReadWrite(const Mapping& mapping) {
    Note(internal::RecordableOf(mapping), internal::UseAccess::kReadWrite);
  }
  // Notes memory that is not Berth's.
  void Untracked();

  // Has the stream wait for all that the launch must come after. Nothing is queued when this fails before the
  // daemon has answered; waits queued before a later failure are harmless.
  // Errors: STREAM_MISUSE (memory that is not Berth's, in strict mode; a block of another session's; a write
  // through a read-only mapping; a second preflight); STALE; BLOCK_IN_USE, naming who did not finish in time;
  // the driver's.
  absl::Status Preflight(absl::Duration patience = kPatience);
  // The launch is queued. An empty recorder commits nothing.
  // Errors: STREAM_MISUSE without a preflight, or where uses were noted after it: what was preflighted is
  // committed all the same. The driver's or the daemon's: others are kept from the blocks as long as this
  // process lives.
  absl::Status Commit();

  // Blocks of the launch that a process had begun to write when it died, as far as Preflight() and then
  // Commit() know.
  const std::vector<BlockId>& torn() const;

 private:
  friend class LaunchRecorderPeer;
  enum class State { kNoting, kOpen, kOver };

  void Note(const internal::Recordable& used, internal::UseAccess access);
  // The first thing wrong stays.
  void Misuse(absl::string_view why);
  absl::Status CheckLeases() const;
  absl::Status QueueOwnWaits();
  absl::Status QueueRemoteWaits(absl::Duration patience);
  absl::Status PrepareRemote(absl::Duration patience);
  absl::Status CommitRemote();
  void Abandon();

  Stream& stream_;
  const RecorderMode mode_;
  State state_ = State::kNoting;
  absl::Status misuse_;
  internal::TrackedLaunch launch_;
  // Of the same places.
  absl::InlinedVector<const internal::LeaseWord*, 4> leases_;
  // The daemon's part of the launch; null where it has none.
  std::unique_ptr<internal::RemotePrepared> remote_;
};

}  // namespace berth

#endif  // CLIENT_LAUNCH_RECORDER_H_
