#include "client/launch_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/internal/import.h"
#include "client/internal/session_core.h"
#include "client/internal/stream_backend.h"
#include "common/error.h"
#include "common/status_macros.h"

namespace berth {

using internal::Fences;
using internal::MappedPage;
using internal::OwnWait;
using internal::OwnWaits;
using internal::Recordable;
using internal::RemoteUse;
using internal::RemoteWait;
using internal::TrackedUse;
using internal::UseAccess;

Recordable internal::RecordableOf(const Mapping& mapping) {
  const Import& import = *mapping.import_;
  return {.fences = &import.core()->fences(),
          .block = &import.tracked(),
          .lease = &import.lease(),
          .read_only = import.read_only(),
          .keep = mapping.import_};
}

LaunchRecorder::LaunchRecorder(std::shared_ptr<Stream> stream, RecorderMode mode)
    : stream_(std::move(stream)), mode_(mode) {}

LaunchRecorder::~LaunchRecorder() {
  if (state_ == State::kOpen) Abandon();
}

void LaunchRecorder::Misuse(absl::string_view why) {
  if (!misuse_.ok()) return;
  misuse_ =
      Refuse(Reason::kStreamMisuse, "stream {stream}: {why}", {{"stream", stream_->id()}, {"why", why}});
}

void LaunchRecorder::Untracked() {
  if (mode_ == RecorderMode::kStrict) Misuse("memory that is not Berth's cannot be ordered");
}

void LaunchRecorder::Note(Recordable used, UseAccess access) {
  if (state_ != State::kNoting) return Misuse("a use was noted after the preflight");
  if (used.fences != stream_->fences_.get()) return Misuse("a block of another session's");
  if (used.read_only && Writes(access)) return Misuse("a write through a read-only mapping");
  const auto same = std::find_if(uses_.begin(), uses_.end(),
                                 [&used](const TrackedUse& use) { return use.block == used.block; });
  if (same != uses_.end()) {
    same->access = same->access | access;
    return;
  }
  uses_.push_back({.block = used.block, .access = access});
  used_.push_back(std::move(used));
}

absl::Status LaunchRecorder::CheckLeases() const {
  for (const Recordable& used : used_) {
    const internal::Lease lease = used.lease->load(std::memory_order_acquire);
    if (lease == internal::Lease::kLive) continue;
    const absl::string_view why = lease == internal::Lease::kFreed ? "block freed" : "lease ended";
    return Refuse(Reason::kStale, "block {block} is stale: {why}",
                  {{"block", absl::StrCat(absl::Hex(used.block->id().value()))}, {"why", why}});
  }
  return absl::OkStatus();
}

absl::Status LaunchRecorder::PrepareRemote(absl::Duration patience) {
  absl::InlinedVector<RemoteUse, 4> remote;
  for (const TrackedUse& use : uses_) {
    if (use.remote) remote.push_back({.block = use.block->id(), .access = use.access});
  }
  if (remote.empty()) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(remote_,
                         stream_->fences_->daemon->Prepare(stream_->tracked_->slot(), remote, patience));
  torn_ = remote_.torn;
  return absl::OkStatus();
}

absl::Status LaunchRecorder::QueueWaits(const OwnWaits& own, absl::Duration patience) {
  Fences& fences = *stream_->fences_;
  for (const OwnWait& wait : own) {
    BERTH_RETURN_IF_ERROR(stream_->backend_->Wait(*fences.pages.own(), wait.slot, wait.value));
  }
  for (const RemoteWait& wait : remote_.waits) {
    MappedPage* page = fences.pages.own();
    if (wait.owner != fences.daemon->channel()) {
      BERTH_ASSIGN_OR_RETURN(page, fences.pages.Await(wait.owner, absl::Now() + patience));
    }
    // The words of the dead are at the top.
    if (page == nullptr) continue;
    BERTH_RETURN_IF_ERROR(stream_->backend_->Wait(*page, wait.slot, wait.value));
  }
  return absl::OkStatus();
}

absl::Status LaunchRecorder::Preflight(absl::Duration patience) {
  if (state_ != State::kNoting) Misuse("a launch has one preflight");
  BERTH_RETURN_IF_ERROR(misuse_);
  if (uses_.empty()) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(CheckLeases());
  OwnWaits own;
  BERTH_RETURN_IF_ERROR(
      stream_->fences_->tracker.Begin(*stream_->tracked_, absl::MakeSpan(uses_), patience, &own));
  state_ = State::kOpen;
  absl::Status status = PrepareRemote(patience);
  if (status.ok()) status = QueueWaits(own, patience);
  if (!status.ok()) Abandon();
  return status;
}

void LaunchRecorder::Abandon() {
  state_ = State::kOver;
  stream_->fences_->tracker.Abandon(*stream_->tracked_, uses_);
  if (remote_.use) stream_->fences_->daemon->Abandon(remote_.use);
}

absl::Status LaunchRecorder::Commit() {
  if (state_ == State::kNoting && !uses_.empty()) Misuse("a commit wants a preflight before the launch");
  if (state_ != State::kOpen) return misuse_;
  Fences& fences = *stream_->fences_;
  state_ = State::kOver;
  MutexLock lock(&stream_->commit_mu_);
  const uint64_t value = fences.tracker.NextValue(*stream_->tracked_);
  // Should this fail nobody can know when the launch ends: the use stays open.
  BERTH_RETURN_IF_ERROR(stream_->backend_->Write(*fences.pages.own(), stream_->tracked_->slot(), value));
  fences.tracker.Finish(*stream_->tracked_, uses_, value);
  if (remote_.use) {
    BERTH_ASSIGN_OR_RETURN(torn_, fences.daemon->Finish(remote_.use, value));
  }
  return misuse_;
}

}  // namespace berth
