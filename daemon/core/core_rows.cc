// What outlives the broker: which rows a step changed, and all of them back.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

enum class Group { kSessions, kPermits, kMemory };

Group GroupOf(const RowKey& key) {
  if (key.kind < static_cast<uint32_t>(RowKind::kPool)) return Group::kSessions;
  return key.kind < static_cast<uint32_t>(RowKind::kMemoryCounters) ? Group::kPermits : Group::kMemory;
}

}  // namespace

bool Core::Impl::WriteRow(const RowKey& key, ArchiveWriter& archive) const {
  switch (GroupOf(key)) {
    case Group::kSessions:
      return WriteSessionRow(key, archive);
    case Group::kPermits:
      return WritePermitRow(key, archive);
    case Group::kMemory:
      break;
  }
  return WriteMemoryRow(key, archive);
}

void Core::TakeChanges(RowBatch* changes) {
  std::string content;
  for (const auto& [key, number, gone] : impl_->journal_.Take()) {
    content.clear();
    ArchiveWriter archive(&content);
    if (!gone && impl_->WriteRow(key, archive)) {
      changes->Put(key, content);
    } else {
      changes->Erase(key);
    }
  }
}

Rows Core::AllRows() const {
  std::vector<RowKey> keys;
  impl_->ListSessionRows(&keys);
  impl_->ListPermitRows(&keys);
  impl_->ListMemoryRows(&keys);
  Rows rows;
  for (const RowKey& key : keys) {
    std::string content;
    ArchiveWriter archive(&content);
    BERTH_INVARIANT(impl_->WriteRow(key, archive));
    rows.emplace(key, std::move(content));
  }
  return rows;
}

absl::Status Core::Restore(const RowViews& rows, const ArchiveOrigin& origin) {
  for (const auto& [key, content] : rows) {
    ArchiveReader archive(content, origin);
    if (key.part != 0 && !HasPart(static_cast<RowKind>(key.kind))) archive.Fail();
    switch (GroupOf(key)) {
      case Group::kSessions:
        impl_->ReadSessionRow(key, archive);
        break;
      case Group::kPermits:
        impl_->ReadPermitRow(key, archive);
        break;
      case Group::kMemory:
        impl_->ReadMemoryRow(key, archive);
        break;
    }
    if (const absl::Status status = archive.Finish(); !status.ok()) {
      return absl::DataLossError(absl::StrFormat("row %d of kind %d (part %d): %s", key.id, key.kind, key.part,
                                                 status.message()));
    }
  }
  impl_->FinishRestoringSessions();
  impl_->FinishRestoringPermits();
  impl_->placed_touches_.reset();
  impl_->UpdatePlacement();
  return absl::OkStatus();
}

Standing Core::WhatStands() const {
  Standing standing;
  for (const Session* const session : impl_->sessions_.List()) {
    standing.lifelines.push_back({.session = session->id,
                                  .tenant = session->tenant,
                                  .label = session->label,
                                  .opener = session->opener,
                                  .secret = session->secret,
                                  .joined = !session->channels.empty()});
  }
  absl::flat_hash_map<ChannelId, absl::Time> waits_since;
  for (const RequestId& request : impl_->absent_) {
    absl::Time& since = waits_since.try_emplace(request.channel, absl::InfiniteFuture()).first->second;
    since = std::min(since, impl_->pending_.at(request).since);
  }
  impl_->sessions_.ForEachChannel([&](const Channel& channel) {
    const auto waits = waits_since.find(channel.id);
    standing.processes.push_back({.channel = channel.id,
                                  .session = channel.session,
                                  .tenant = impl_->sessions_.Find(channel.session)->tenant,
                                  .process = channel.process,
                                  .hung_up = channel.hung_up,
                                  .has_page = channel.has_page,
                                  .waits_since = waits == waits_since.end() ? std::nullopt
                                                                            : std::optional(waits->second)});
  });
  impl_->blocks_.ForEach([&](const Block& block) {
    standing.blocks.push_back({.block = block.id, .device = block.device, .phase = block.phase});
  });
  return standing;
}

void Core::Resume(absl::Time now, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  impl_->ResumeMemory(step);
  impl_->ResumeSessions(step);
  impl_->ResumePermits(step);
}

}  // namespace berth::core
