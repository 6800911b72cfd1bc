#include "client/launch_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/import.h"
#include "client/internal/session_core.h"
#include "client/internal/stream_backend.h"
#include "common/error.h"
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

LaunchRecorder::~LaunchRecorder() {
  if (state_ == State::kOpen) Abandon();
}

void LaunchRecorder::Misuse(absl::string_view why) {
  if (!misuse_.ok()) return;
  misuse_ = Refuse(Reason::kStreamMisuse, "stream {stream}: {why}", {{"stream", stream_.id()}, {"why", why}});
}

void LaunchRecorder::Untracked() {
  if (mode_ == RecorderMode::kStrict) Misuse("memory that is not Berth's cannot be ordered");
}

void LaunchRecorder::Note(const Recordable& used, UseAccess access) {
  if (state_ != State::kNoting) return Misuse("a use was noted after the preflight");
  if (used.fences != stream_.fences_.get()) return Misuse("a block of another session's");
  if (used.read_only && Writes(access)) return Misuse("a write through a read-only mapping");
  for (TrackedUse& use : launch_.uses) {
    if (use.block != used.block) continue;
    use.access = use.access | access;
    return;
  }
  // Field by field: a struct that is copied whole waits for the stores of its parts.
  TrackedUse& use = launch_.uses.emplace_back();
  use.block = used.block;
  use.access = access;
  leases_.push_back(used.lease);
}

absl::Status LaunchRecorder::CheckLeases() const {
  for (size_t i = 0; i < leases_.size(); ++i) {
    const internal::Lease lease = leases_[i]->load(std::memory_order_acquire);
    if (lease == internal::Lease::kLive) continue;
    const absl::string_view why = lease == internal::Lease::kFreed ? "block freed" : "lease ended";
    return Refuse(Reason::kStale, "block {block} is stale: {why}",
                  {{"block", absl::StrCat(absl::Hex(launch_.uses[i].block->id().value()))}, {"why", why}});
  }
  return absl::OkStatus();
}

absl::Status LaunchRecorder::PrepareRemote(absl::Duration patience) {
  absl::InlinedVector<RemoteUse, 4> remote;
  for (const TrackedUse& use : launch_.uses) {
    if (use.remote) remote.push_back({.block = use.block->id(), .access = use.access});
  }
  BERTH_ASSIGN_OR_RETURN(RemotePrepared prepared,
                         stream_.fences_->daemon->Prepare(stream_.tracked_->slot(), remote, patience));
  remote_ = std::make_unique<RemotePrepared>(std::move(prepared));
  return absl::OkStatus();
}

absl::Status LaunchRecorder::QueueOwnWaits() {
  internal::StreamBackend& backend = stream_.tracked_->backend();
  for (LaunchEnd* const wait : launch_.waits) {
    if (wait->kind == backend.kind()) {
      BERTH_RETURN_IF_ERROR(backend.WaitEvent(*wait->event));
      continue;
    }
    BERTH_ASSIGN_OR_RETURN(const OwnWait word, stream_.fences_->tracker.WordOf(*wait));
    if (word.value == 0) continue;
    BERTH_RETURN_IF_ERROR(backend.Wait(stream_.tracked_->word().page(), word.slot, word.value));
  }
  return absl::OkStatus();
}

absl::Status LaunchRecorder::QueueRemoteWaits(absl::Duration patience) {
  Fences& fences = *stream_.fences_;
  for (const RemoteWait& wait : remote_->waits) {
    MappedPage* page = &stream_.tracked_->word().page();
    if (wait.owner != fences.daemon->channel()) {
      BERTH_ASSIGN_OR_RETURN(page, fences.pages.Await(wait.owner, SteadyNow() + patience));
    }
    // The words of the dead are at the top.
    if (page == nullptr) continue;
    BERTH_RETURN_IF_ERROR(stream_.tracked_->backend().Wait(*page, wait.slot, wait.value));
  }
  return absl::OkStatus();
}

const std::vector<BlockId>& LaunchRecorder::torn() const {
  static const auto* const kNone = new std::vector<BlockId>;
  return remote_ == nullptr ? *kNone : remote_->torn;
}

absl::Status LaunchRecorder::Preflight(absl::Duration patience) {
  if (state_ != State::kNoting) Misuse("a launch has one preflight");
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

void LaunchRecorder::Abandon() {
  state_ = State::kOver;
  stream_.fences_->tracker.Abandon(*stream_.tracked_, &launch_);
  if (remote_ != nullptr) stream_.fences_->daemon->Abandon(remote_->use);
}

absl::Status LaunchRecorder::Commit() {
  if (state_ == State::kNoting && !launch_.uses.empty())
    Misuse("a commit wants a preflight before the launch");
  if (state_ != State::kOpen) return misuse_;
  state_ = State::kOver;
  // Should either fail nobody can know when the launch ends: its uses stay open.
  if (launch_.local) {
    BERTH_RETURN_IF_ERROR(stream_.fences_->tracker.Record(*stream_.tracked_, &launch_));
    stream_.fences_->tracker.Finish(*stream_.tracked_, &launch_);
  }
  if (launch_.remote) BERTH_RETURN_IF_ERROR(CommitRemote());
  return misuse_;
}

absl::Status LaunchRecorder::CommitRemote() {
  internal::TrackedStream& stream = *stream_.tracked_;
  BERTH_ASSIGN_OR_RETURN(const uint64_t value, stream.word().Queue(stream.recorded()));
  BERTH_ASSIGN_OR_RETURN(remote_->torn, stream_.fences_->daemon->Finish(remote_->use, value));
  return absl::OkStatus();
}

}  // namespace berth
