#include "daemon/broker/block_keeper.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <utility>
#include <variant>
#include <vector>

#include "common/fd_passing.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

custody::Key BlockKey(BlockId block) { return custody::KeyOf(custody::Kind::kBlock, block.value()); }

// Answers taken of a worker before others get their turn.
constexpr int kRepliesPerEvent = 16;

}  // namespace

BlockKeeper::Worker* BlockKeeper::FindWorkerLocked(Key key) {
  const auto it = workers_.find(key);
  return it == workers_.end() || it->second.channel == nullptr ? nullptr : &it->second;
}

void BlockKeeper::WatchForRoomLocked(Worker* worker) {
  loop_.Rewatch(worker->watch, worker->channel->wants_write() ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void BlockKeeper::EndWorkerLocked(Worker* worker) {
  // Ending the socket, for the vault's copy too, ends a worker that lives; the vault sees it by the pidfd.
  loop_.Unwatch(worker->watch);
  ::shutdown(worker->channel->fd(), SHUT_RDWR);
}

void BlockKeeper::EndUnaskedLocked(Key key, BlockId block) {
  spdlog::critical("worker {}: block {:x} is not waited for; the worker is ended", key.first, block.value());
  EndWorkerLocked(&workers_[key]);
}

void BlockKeeper::Create(const core::CreateBlock& effect) {
  absl::Status outcome;
  if (!StartCreate(effect, &outcome)) return;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.BlockCreated(now, effect.block, outcome, effects);
  });
}

bool BlockKeeper::StartCreate(const core::CreateBlock& effect, absl::Status* outcome) {
  MutexLock lock(&mu_);
  // An earlier broker had it made.
  const auto made = blocks_.find(effect.block);
  if (made != blocks_.end() && made->second.stage == Stage::kHeld) return true;
  Worker* const worker = FindWorkerLocked({effect.device, effect.lane});
  // The core asks again once a worker is up. It may also have asked a worker that has just come for what it had
  // asked the one before.
  if (worker == nullptr || !worker->creating.insert(effect.block).second) return false;
  *outcome = worker->channel->SendCreate(effect.block, effect.bytes);
  WatchForRoomLocked(worker);
  if (!outcome->ok()) worker->creating.erase(effect.block);
  // A worker that is gone is reported by the vault; one that is there and takes no more is an answer.
  return absl::IsResourceExhausted(*outcome);
}

absl::StatusOr<int> BlockKeeper::Find(BlockId block) const {
  MutexLock lock(&mu_);
  const auto it = blocks_.find(block);
  if (it == blocks_.end() || it->second.stage != Stage::kHeld)
    return absl::NotFoundError("the block has no fd here");
  return it->second.fd.get();
}

void BlockKeeper::Release(const core::ReleaseBlock& effect) {
  // What nobody has is released: an earlier broker may have come that far, or never have had it made.
  if (effect.lost || !StartRelease(effect)) OnReleased(effect.block, absl::OkStatus());
}

bool BlockKeeper::StartRelease(const core::ReleaseBlock& effect) {
  MutexLock lock(&mu_);
  if (effect.lane == Lane::kContext) {
    Worker* const worker = FindWorkerLocked({effect.device, effect.lane});
    if (worker == nullptr) return true;
    worker->channel->SendRelease(effect.block).IgnoreError();
    WatchForRoomLocked(worker);
    return true;
  }
  const auto it = blocks_.find(effect.block);
  if (it == blocks_.end()) {
    // Should it come all the same, of what an earlier broker asked, it is nobody's.
    expected_.erase(effect.block);
    return false;
  }
  if (it->second.stage == Stage::kRefused) {
    ReleaseAgainLocked(effect.block, &it->second);
  } else if (it->second.stage == Stage::kHeld) {
    it->second.stage = Stage::kReleasing;
    AdvanceLocked(effect.block, &it->second);
  }
  // The core asks a new worker again for what the one before had not answered; some of that is under way.
  return true;
}

void BlockKeeper::Expect(BlockId block) {
  MutexLock lock(&mu_);
  expected_.insert(block);
}

void BlockKeeper::Adopt(BlockId block, uint32_t device, UniqueFd fd) {
  MutexLock lock(&mu_);
  blocks_[block] = Held{.device = device, .fd = std::move(fd)};
}

void BlockKeeper::ReleaseOrphan(BlockId block, UniqueFd fd) {
  MutexLock lock(&mu_);
  // The fd does not say its device; any worker that has no context can close it.
  uint32_t device = 0;
  for (const auto& [key, worker] : workers_) {
    if (key.second == Lane::kMain) device = key.first;
  }
  ReleaseOrphanLocked(block, device, std::move(fd));
}

void BlockKeeper::ReleaseOrphanLocked(BlockId block, uint32_t device, UniqueFd fd) {
  Held& held = blocks_[block] = Held{.device = device, .stage = Stage::kReleasing, .fd = std::move(fd)};
  AdvanceLocked(block, &held);
}

void BlockKeeper::AdvanceLocked(BlockId block, Held* held) {
  Worker* const worker = FindWorkerLocked({held->device, Lane::kMain});
  // Without a worker, or an fd for the message, it stays to be released: by the next worker at the latest.
  if (worker == nullptr) return;
  if (!held->with_worker) held->with_worker = worker->channel->SendHold(block, held->fd.get()).ok();
  if (held->with_worker && !std::exchange(held->drop_asked, true)) custody_.Drop(BlockKey(block));
  if (held->with_worker && held->vault_dropped) {
    held->stage = Stage::kClosing;
    held->fd.reset();
    worker->channel->SendRelease(block).IgnoreError();
  }
  WatchForRoomLocked(worker);
}

void BlockKeeper::ReleaseAgainLocked(BlockId block, Held* held) {
  Worker* const worker = FindWorkerLocked({held->device, Lane::kMain});
  if (worker == nullptr) return;
  held->stage = Stage::kClosing;
  worker->channel->SendRelease(block).IgnoreError();
  WatchForRoomLocked(worker);
}

void BlockKeeper::VaultDropped(BlockId block) {
  MutexLock lock(&mu_);
  const auto it = blocks_.find(block);
  if (it == blocks_.end() || it->second.stage != Stage::kReleasing) return;
  it->second.vault_dropped = true;
  AdvanceLocked(block, &it->second);
}

void BlockKeeper::WorkerIsUp(uint32_t device, Lane lane, UniqueFd socket, bool at_work) {
  const Key key(device, lane);
  {
    MutexLock lock(&mu_);
    Worker& worker = workers_[key];
    worker.channel = std::make_unique<WorkerChannel>(std::move(socket));
    const absl::StatusOr<EventLoop::WatchId> watch = loop_.Watch(
        worker.channel->fd(), EPOLLIN, [this, key](uint32_t events) { OnWorkerEvent(key, events); });
    if (!watch.ok()) {
      spdlog::critical("worker {}: {}", device, std::string(watch.status().message()));
      abort();
    }
    worker.watch = *watch;
    worker.at_work = at_work;
    // A worker that is gone already is reported by the vault.
    worker.channel->SendBegin(epoch_).IgnoreError();
    for (auto& [block, held] : blocks_) {
      if (Key(held.device, Lane::kMain) == key && held.stage == Stage::kReleasing)
        AdvanceLocked(block, &held);
    }
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    if (at_work) {
      core.WorkerAtWork(now, device, lane, effects);
    } else {
      core.WorkerUp(now, device, lane, effects);
    }
  });
}

void BlockKeeper::OnWorkerNews(const WorkerNews& news) {
  const core::DeviceReport report = {.generation = news.generation,
                                     .dropped = news.dropped,
                                     .abandoned = news.state == custody::WorkerState::kAbandoned,
                                     .drain_reason = news.drain_reason,
                                     .restarts_left = news.restarts_left,
                                     .last_failure = news.last_failure};
  if (news.state == custody::WorkerState::kRunning) {
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      core.ReportDevice(now, news.device, news.lane, report, effects);
    });
    return;
  }
  const Key key(news.device, news.lane);
  // What it said before it ended holds.
  while (TakeReply(key)) {
  }
  const std::vector<BlockId> released = ForgetWorker(key, report.abandoned);
  const core::DeviceState state = news.state == custody::WorkerState::kGone   ? core::DeviceState::kRebuilding
                                  : news.state == custody::WorkerState::kIdle ? core::DeviceState::kIdle
                                  : news.state == custody::WorkerState::kTesting
                                      ? core::DeviceState::kProbation
                                      : core::DeviceState::kStopped;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ReportDevice(now, news.device, news.lane, report, effects);
    core.WorkerDown(now, news.device, news.lane, state, effects);
    // A worker that meets a loss first says what the monitor would, who says when the device is back.
    if (news.state == custody::WorkerState::kLost) {
      core.DeviceSurveyed(now, news.device, {.lost = true, .trouble = news.last_failure}, effects);
    }
    for (const BlockId block : released) core.BlockReleased(now, block, absl::OkStatus(), effects);
  });
}

std::vector<BlockId> BlockKeeper::ForgetWorker(Key key, bool abandoned) {
  MutexLock lock(&mu_);
  Worker& worker = workers_[key];
  loop_.Unwatch(worker.watch);
  worker = Worker{};
  std::vector<BlockId> released;
  if (key.second == Lane::kContext) return released;
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    Held& held = it->second;
    // One that is abandoned has it still.
    const bool only_there = held.stage == Stage::kClosing || held.stage == Stage::kRefused;
    if (held.device == key.first && only_there && !abandoned) {
      released.push_back(it->first);
      blocks_.erase(it++);
      continue;
    }
    if (held.device == key.first) held.with_worker = false;
    ++it;
  }
  return released;
}

void BlockKeeper::OnWorkerEvent(Key key, uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    MutexLock lock(&mu_);
    if (Worker* const worker = FindWorkerLocked(key); worker != nullptr) {
      worker->channel->Flush().IgnoreError();
      WatchForRoomLocked(worker);
    }
  }
  for (int i = 0; i < kRepliesPerEvent && TakeReply(key); ++i) {
  }
}

bool BlockKeeper::TakeReply(Key key) {
  absl::StatusOr<WorkerReply> reply;
  bool earlier = false;
  {
    MutexLock lock(&mu_);
    Worker* const worker = FindWorkerLocked(key);
    if (worker == nullptr) return false;
    earlier = worker->at_work;
    reply = worker->channel->Read();
    if (!reply.ok() && !IsWouldBlock(reply.status())) {
      // The worker is gone, or an answer of its is lost.
      EndWorkerLocked(worker);
    }
  }
  if (!reply.ok()) return false;
  if (earlier) {
    OnEarlierReply(key, *std::move(reply));
  } else {
    OnReply(key, *std::move(reply));
  }
  return true;
}

void BlockKeeper::OnReply(Key key, WorkerReply reply) {
  if (auto* const created = std::get_if<CreatedBlock>(&reply)) {
    if (key.second == Lane::kContext) {
      OnCreatedByHandle(key, *created);
    } else {
      OnCreated(key.first, std::move(*created));
    }
  } else if (const auto* const released = std::get_if<ReleasedBlock>(&reply)) {
    OnReleased(released->block, released->status);
  } else if (const auto* const begun = std::get_if<BegunWorker>(&reply)) {
    if (key.second == Lane::kMain) return;
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      core.ContextMeasured(now, key.first, begun->context, effects);
    });
  }
}

void BlockKeeper::OnEarlierReply(Key key, WorkerReply reply) {
  if (const auto* const begun = std::get_if<BegunWorker>(&reply); begun != nullptr && OnBegun(key, *begun)) return;
  if (const auto* const kept = std::get_if<KeptBlock>(&reply)) {
    MutexLock lock(&mu_);
    return workers_[key].kept.push_back(kept->block);
  }
  if (key.second == Lane::kMain) {
    if (auto* const created = std::get_if<CreatedBlock>(&reply)) {
      OnCreatedEarlier(key.first, std::move(*created));
    } else if (const auto* const released = std::get_if<ReleasedBlock>(&reply)) {
      OnReleasedEarlier(key.first, *released);
    }
  }
  // It gets on.
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerAtWork(now, key.first, key.second, effects);
  });
}

void BlockKeeper::OnCreatedEarlier(uint32_t device, CreatedBlock created) {
  // What was refused the core asks for once more.
  if (!created.fd.ok()) return;
  {
    MutexLock lock(&mu_);
    // It was there when this broker came, so the answer is an earlier broker's already.
    if (blocks_.contains(created.block)) return EndUnaskedLocked({device, Lane::kMain}, created.block);
    if (expected_.erase(created.block) == 0) {
      return ReleaseOrphanLocked(created.block, device, *std::move(created.fd));
    }
  }
  Keep(created.block, device, *std::move(created.fd)).IgnoreError();
}

void BlockKeeper::OnReleasedEarlier(uint32_t device, const ReleasedBlock& released) {
  MutexLock lock(&mu_);
  const auto it = blocks_.find(released.block);
  if (it == blocks_.end()) {
    if (!released.status.ok()) blocks_[released.block] = Held{.device = device, .stage = Stage::kRefused};
  } else if (it->second.stage == Stage::kRefused && released.status.ok()) {
    blocks_.erase(it);
  }
  // What the vault has still is not gone with a worker's copy.
}

bool BlockKeeper::OnBegun(Key key, const BegunWorker& begun) {
  {
    MutexLock lock(&mu_);
    Worker& worker = workers_[key];
    if (begun.epoch != epoch_) {
      // What a broker before this one asked is answered after it, and what is kept is said anew.
      worker.kept.clear();
      return false;
    }
    worker.at_work = false;
    for (const BlockId block : std::exchange(worker.kept, {})) {
      if (!expected_.contains(block)) worker.channel->SendRelease(block).IgnoreError();
    }
    WatchForRoomLocked(&worker);
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerUp(now, key.first, key.second, effects);
    if (key.second == Lane::kContext) core.ContextMeasured(now, key.first, begun.context, effects);
  });
  return true;
}

void BlockKeeper::OnCreatedByHandle(Key key, const CreatedBlock& created) {
  {
    MutexLock lock(&mu_);
    if (workers_[key].creating.erase(created.block) == 0) return EndUnaskedLocked(key, created.block);
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.BlockCreated(now, created.block, created.fd.status(), effects, created.handle.value_or(IpcHandle()));
  });
}

void BlockKeeper::OnCreated(uint32_t device, CreatedBlock created) {
  {
    MutexLock lock(&mu_);
    absl::flat_hash_set<BlockId>& creating = workers_[Key(device, Lane::kMain)].creating;
    if (!creating.contains(created.block)) return EndUnaskedLocked({device, Lane::kMain}, created.block);
    // One that was made is asked for until it is held: in between it could be asked for once more.
    if (!created.fd.ok()) creating.erase(created.block);
  }
  const absl::Status status =
      created.fd.ok() ? Keep(created.block, device, *std::move(created.fd)) : created.fd.status();
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.BlockCreated(now, created.block, status, effects);
  });
}

absl::Status BlockKeeper::Keep(BlockId block, uint32_t device, UniqueFd fd) {
  // In the vault's hands before anyone is told of it.
  const absl::Status kept = custody_.Put(BlockKey(block), fd.get(), FdOwner::kClient);
  MutexLock lock(&mu_);
  workers_[Key(device, Lane::kMain)].creating.erase(block);
  if (kept.ok()) {
    blocks_[block] = Held{.device = device, .fd = std::move(fd)};
  } else {
    ReleaseOrphanLocked(block, device, std::move(fd));
  }
  return kept;
}

void BlockKeeper::OnReleased(BlockId block, const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (status.ok()) {
      blocks_.erase(block);
    } else if (const auto it = blocks_.find(block); it != blocks_.end()) {
      it->second.stage = Stage::kRefused;
    }
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.BlockReleased(now, block, status, effects);
  });
}

}  // namespace berth
