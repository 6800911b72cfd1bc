#include <berth/launch_recorder.h>

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "client/sdk/fences/fences.h"
#include "client/sdk/fences/stream_backend.h"
#include "client/sdk/memory/import.h"
#include "client/sdk/transport/session_core.h"
#include "common/patience.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth {

using internal::Fences;
using internal::LaunchEnd;
using internal::MappedPage;
using internal::OwnWait;
using internal::Recordable;
using internal::RemotePrepared;
using internal::RemoteUse;
using internal::RemoteWait;
using internal::TrackedUse;
using internal::UseAccess;

Recordable internal::RecordableOf(const Mapping& mapping) {
  const Import& import = *mapping.import_;
  return {.fences = &import.core()->fences(),
          .block = &import.tracked(),
          .lease = &import.lease(),
          .read_only = import.read_only()};
}

class LaunchRecorder::Launch {
 public:
  Launch(Stream& stream, RecorderMode mode) : stream_(stream), mode_(mode) {}
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch() {
    if (state_ == State::kOpen) Abandon();
  }

  void RecordUse(const Recordable& used, UseAccess access);
  void Untracked();
  absl::Status Preflight(absl::Duration patience);
  absl::Status Commit();
  const std::vector<BlockId>& torn() const;

 private:
  enum class State { kRecording, kOpen, kOver };

  // Stores the first misuse; later ones are ignored.
  void Misuse(absl::string_view why);
  absl::Status CheckLeases() const;
  absl::Status QueueOwnWaits();
  absl::Status QueueRemoteWaits(absl::Duration patience);
  absl::Status PrepareRemote(absl::Duration patience);
  absl::Status CommitRemote();
  void Abandon();

  Stream& stream_;
  const RecorderMode mode_;
  State state_ = State::kRecording;
  absl::Status misuse_;
  internal::TrackedLaunch launch_;
  // The lease states of `launch_.uses`, at the same indices.
  absl::InlinedVector<const internal::AtomicLease*, 4> leases_;
  // The daemon's part of the launch; null if the daemon has none.
  std::unique_ptr<RemotePrepared> remote_;
};

void LaunchRecorder::Launch::Misuse(absl::string_view why) {
  if (!misuse_.ok()) return;
  misuse_ = Refuse(Reason::kStreamMisuse, "stream {stream}: {why}", {{"stream", stream_.id()}, {"why", why}});
}

void LaunchRecorder::Launch::Untracked() {
  if (mode_ == RecorderMode::kStrict) Misuse("strict mode cannot order memory that is not Berth's");
}

void LaunchRecorder::Launch::RecordUse(const Recordable& used, UseAccess access) {
  if (state_ != State::kRecording) return Misuse("a use was recorded after the preflight");
  if (used.fences != stream_.fences_.get()) return Misuse("the block belongs to another session");
  if (used.read_only && Writes(access)) return Misuse("a write through a read-only mapping");
  for (TrackedUse& use : launch_.uses) {
    if (use.block != used.block) continue;
    use.access = use.access | access;
    return;
  }
  // Assign field by field: copying a whole struct stalls on the stores to its parts.
  TrackedUse& use = launch_.uses.emplace_back();
  use.block = used.block;
  use.access = access;
  leases_.push_back(used.lease);
}

absl::Status LaunchRecorder::Launch::CheckLeases() const {
  for (size_t i = 0; i < leases_.size(); ++i) {
    const internal::Lease lease = leases_[i]->load(std::memory_order_acquire);
    if (lease == internal::Lease::kLive) continue;
    const absl::string_view why = lease == internal::Lease::kLost    ? kLostWithDaemon
                                  : lease == internal::Lease::kFreed ? "block freed"
                                                                     : "lease ended";
    return Refuse(Reason::kStale, "block {block} is stale: {why}",
                  {{"block", launch_.uses[i].block->id().value()}, {"why", why}});
  }
  return absl::OkStatus();
}

absl::Status LaunchRecorder::Launch::PrepareRemote(absl::Duration patience) {
  absl::InlinedVector<RemoteUse, 4> remote;
  for (const TrackedUse& use : launch_.uses) {
    if (use.remote) remote.push_back({.block = use.block->id(), .access = use.access});
  }
  BERTH_ASSIGN_OR_RETURN(RemotePrepared prepared,
                         stream_.fences_->daemon->Prepare(stream_.tracked_->slot(), remote, patience));
  remote_ = std::make_unique<RemotePrepared>(std::move(prepared));
  return absl::OkStatus();
}

absl::Status LaunchRecorder::Launch::QueueOwnWaits() {
  internal::StreamBackend& backend = stream_.tracked_->backend();
  for (LaunchEnd* const wait : launch_.waits) {
    if (wait->kind == backend.kind()) {
      BERTH_RETURN_IF_ERROR(backend.WaitEvent(*wait->event));
      continue;
    }
    BERTH_ASSIGN_OR_RETURN(const OwnWait own, stream_.fences_->tracker.FenceValueOf(*wait));
    if (own.value == 0) continue;
    BERTH_RETURN_IF_ERROR(backend.Wait(stream_.tracked_->fence_value().page(), own.slot, own.value));
  }
  return absl::OkStatus();
}

absl::Status LaunchRecorder::Launch::QueueRemoteWaits(absl::Duration patience) {
  Fences& fences = *stream_.fences_;
  for (const RemoteWait& wait : remote_->waits) {
    MappedPage* page = &stream_.tracked_->fence_value().page();
    if (wait.owner != fences.daemon->channel()) {
      BERTH_ASSIGN_OR_RETURN(page, fences.pages.Await(wait.owner, SteadyNow() + patience));
    }
    // The fence values of an ended process are at their maximum: no wait is needed.
    if (page == nullptr) continue;
    BERTH_RETURN_IF_ERROR(stream_.tracked_->backend().Wait(*page, wait.slot, wait.value));
  }
  return absl::OkStatus();
}

const std::vector<BlockId>& LaunchRecorder::Launch::torn() const {
  static const auto* const kNone = new std::vector<BlockId>;
  return remote_ == nullptr ? *kNone : remote_->torn;
}

absl::Status LaunchRecorder::Launch::Preflight(absl::Duration patience) {
  if (state_ != State::kRecording) Misuse("a launch takes only one preflight");
  BERTH_RETURN_IF_ERROR(misuse_);
  if (launch_.uses.empty()) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(CheckLeases());
  BERTH_RETURN_IF_ERROR(stream_.fences_->tracker.Begin(*stream_.tracked_, &launch_, patience));
  state_ = State::kOpen;
  absl::Status status = QueueOwnWaits();
  if (status.ok() && launch_.remote) {
    status = PrepareRemote(patience);
    if (status.ok()) status = QueueRemoteWaits(patience);
  }
  if (!status.ok()) Abandon();
  return status;
}

void LaunchRecorder::Launch::Abandon() {
  state_ = State::kOver;
  stream_.fences_->tracker.Abandon(*stream_.tracked_, &launch_);
  if (remote_ != nullptr) stream_.fences_->daemon->Abandon(remote_->use);
}

absl::Status LaunchRecorder::Launch::Commit() {
  if (state_ == State::kRecording && !launch_.uses.empty()) Misuse("a commit needs a preflight before the launch");
  if (state_ != State::kOpen) return misuse_;
  state_ = State::kOver;
  // If either step fails, the end of the launch is unknown: its uses stay open.
  if (launch_.local) {
    BERTH_RETURN_IF_ERROR(stream_.fences_->tracker.Record(*stream_.tracked_, &launch_));
    stream_.fences_->tracker.Finish(*stream_.tracked_, &launch_);
  }
  if (launch_.remote) BERTH_RETURN_IF_ERROR(CommitRemote());
  return misuse_;
}

absl::Status LaunchRecorder::Launch::CommitRemote() {
  internal::TrackedStream& stream = *stream_.tracked_;
  BERTH_ASSIGN_OR_RETURN(const uint64_t value, stream.fence_value().Queue(stream.recorded()));
  BERTH_ASSIGN_OR_RETURN(remote_->torn, stream_.fences_->daemon->Finish(remote_->use, value));
  return absl::OkStatus();
}

LaunchRecorder::LaunchRecorder(Stream& stream, RecorderMode mode) {
  static_assert(sizeof(Launch) <= kLaunchBytes && alignof(Launch) <= alignof(std::max_align_t));
  new (launch_) Launch(stream, mode);
}

LaunchRecorder::~LaunchRecorder() { launch().~Launch(); }

LaunchRecorder::Launch& LaunchRecorder::launch() { return *std::launder(reinterpret_cast<Launch*>(launch_)); }
const LaunchRecorder::Launch& LaunchRecorder::launch() const {
  return *std::launder(reinterpret_cast<const Launch*>(launch_));
}

void LaunchRecorder::Read(const Mapping& mapping) { RecordUse(internal::RecordableOf(mapping), UseAccess::kRead); }
void LaunchRecorder::Write(const Mapping& mapping) { RecordUse(internal::RecordableOf(mapping), UseAccess::kWrite); }
void LaunchRecorder::ReadWrite(const Mapping& mapping) {
  RecordUse(internal::RecordableOf(mapping), UseAccess::kReadWrite);
}

void LaunchRecorder::RecordUse(const Recordable& used, UseAccess access) { launch().RecordUse(used, access); }
void LaunchRecorder::Untracked() { launch().Untracked(); }
absl::Status LaunchRecorder::Preflight(absl::Duration patience) {
  // A caller's own patience stays as it is.
  return launch().Preflight(patience == kPatience ? Patient(patience) : patience);
}
absl::Status LaunchRecorder::Commit() { return launch().Commit(); }
const std::vector<BlockId>& LaunchRecorder::torn() const { return launch().torn(); }

}  // namespace berth
