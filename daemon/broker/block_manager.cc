#include "daemon/broker/block_manager.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <variant>
#include <vector>

#include "common/os/fd_passing.h"
#include "common/os/os_error.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

fd_store::Key BlockKey(BlockId block) { return fd_store::KeyOf(fd_store::Kind::kBlock, block.value()); }

// Limit of answers read from one worker before other fds get their turn.
constexpr int kRepliesPerEvent = 16;

// Time until the manager sends an fd again that no message could take. Either the processes of the broker's user have
// too many fds in messages, or the broker has no fd left for a duplicate.
constexpr itimerspec kRetryHold = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 100'000'000}};

}  // namespace

BlockManager::BlockManager(EventLoop* loop, Broker* broker, SupervisorFdStore* fd_store, uint64_t epoch)
    : loop_(*loop),
      broker_(*broker),
      fd_store_(*fd_store),
      epoch_(epoch),
      retry_timer_(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)) {
  const absl::StatusOr<EventLoop::WatchId> watch =
      retry_timer_ ? loop_.Watch(retry_timer_.get(), EPOLLIN, [this](uint32_t) { OnRetryTimer(); })
                   : OsError("timerfd_create", errno);
  if (!watch.ok()) {
    spdlog::critical("no timer for blocks to release: {}; restarting the broker",
                     std::string(watch.status().message()));
    abort();
  }
  retry_watch_ = *watch;
}

BlockManager::~BlockManager() { loop_.Unwatch(retry_watch_); }

BlockManager::Worker* BlockManager::FindWorkerLocked(Key key) {
  const auto it = workers_.find(key);
  return it == workers_.end() || it->second.channel == nullptr ? nullptr : &it->second;
}

void BlockManager::WatchForCapacityLocked(Worker* worker) {
  loop_.Rewatch(worker->watch, worker->channel->wants_write() ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void BlockManager::EndWorkerLocked(Worker* worker) {
  // Shutting down the socket, which the supervisor's copy shares, ends a living worker; the supervisor notices by the
  // pidfd.
  loop_.Unwatch(worker->watch);
  ::shutdown(worker->channel->fd(), SHUT_RDWR);
}

void BlockManager::EndUnaskedLocked(Key key, BlockId block) {
  spdlog::critical("device {}: unrequested block {} from its worker; ending the worker", key.first, block.value());
  EndWorkerLocked(&workers_[key]);
}

void BlockManager::Create(const core::CreateBlock& effect) {
  absl::Status outcome;
  if (!StartCreate(effect, &outcome)) return;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.BlockCreated(now, effect.block, outcome, effects);
  });
}

bool BlockManager::StartCreate(const core::CreateBlock& effect, absl::Status* outcome) {
  MutexLock lock(&mu_);
  // An earlier broker had the block made.
  const auto made = blocks_.find(effect.block);
  if (made != blocks_.end() && made->second.stage == Stage::kHeld) return true;
  Worker* const worker = FindWorkerLocked({effect.device, effect.worker_kind});
  // The core repeats the request once a worker is up. For a new worker, the core may also have repeated a request that
  // was already sent to that worker.
  if (worker == nullptr || !worker->creating.insert(effect.block).second) return false;
  *outcome = worker->channel->SendCreate(effect.block, effect.bytes);
  WatchForCapacityLocked(worker);
  if (!outcome->ok()) worker->creating.erase(effect.block);
  // The supervisor reports a worker that has ended. A message that the kernel lacks memory for is an answer.
  return absl::IsResourceExhausted(*outcome);
}

absl::StatusOr<int> BlockManager::Find(BlockId block) const {
  MutexLock lock(&mu_);
  const auto it = blocks_.find(block);
  if (it == blocks_.end() || it->second.stage != Stage::kHeld)
    return absl::NotFoundError("the broker holds no fd of the block");
  return it->second.fd.get();
}

void BlockManager::Release(const core::ReleaseBlock& effect) {
  // A block without any fd counts as released: an earlier broker may have released it already, or never had it made.
  if (effect.lost || !StartRelease(effect)) OnReleased(effect.block, absl::OkStatus());
}

bool BlockManager::StartRelease(const core::ReleaseBlock& effect) {
  MutexLock lock(&mu_);
  if (effect.worker_kind == WorkerKind::kContext) {
    Worker* const worker = FindWorkerLocked({effect.device, effect.worker_kind});
    if (worker == nullptr) return true;
    worker->channel->SendRelease(effect.block).IgnoreError();
    WatchForCapacityLocked(worker);
    return true;
  }
  const auto it = blocks_.find(effect.block);
  if (it == blocks_.end()) {
    // If a worker still makes it for an earlier broker, the block will have no owner.
    expected_.erase(effect.block);
    return false;
  }
  if (it->second.stage == Stage::kRefused) {
    ReleaseAgainLocked(effect.block, &it->second);
  } else if (it->second.stage == Stage::kHeld) {
    it->second.stage = Stage::kReleasing;
    AdvanceLocked(effect.block, &it->second);
  }
  // The core repeats to a new worker what the previous one had not answered; some of those releases are in progress.
  return true;
}

void BlockManager::Expect(BlockId block) {
  MutexLock lock(&mu_);
  expected_.insert(block);
}

void BlockManager::Adopt(BlockId block, uint32_t device, UniqueFd fd) {
  MutexLock lock(&mu_);
  blocks_[block] = Held{.device = device, .fd = std::move(fd)};
}

void BlockManager::ReleaseOrphan(BlockId block, UniqueFd fd) {
  MutexLock lock(&mu_);
  // The fd does not reveal its device; any worker without a context can close it.
  uint32_t device = 0;
  for (const auto& [key, worker] : workers_) {
    if (key.second == WorkerKind::kMain) device = key.first;
  }
  ReleaseOrphanLocked(block, device, std::move(fd));
}

void BlockManager::ReleaseOrphanLocked(BlockId block, uint32_t device, UniqueFd fd) {
  Held& held = blocks_[block] = Held{.device = device, .stage = Stage::kReleasing, .fd = std::move(fd)};
  AdvanceLocked(block, &held);
}

void BlockManager::AdvanceLocked(BlockId block, Held* held) {
  Worker* const worker = FindWorkerLocked({held->device, WorkerKind::kMain});
  // Without a worker, the block stays to be released by the next one.
  if (worker == nullptr) return;
  if (!held->with_worker) {
    const absl::Status sent = worker->channel->SendHold(block, held->fd.get());
    held->with_worker = sent.ok();
    if (absl::IsResourceExhausted(sent)) ::timerfd_settime(retry_timer_.get(), 0, &kRetryHold, nullptr);
  }
  if (held->with_worker && !std::exchange(held->drop_asked, true)) fd_store_.Drop(BlockKey(block));
  if (held->with_worker && held->supervisor_dropped) {
    held->stage = Stage::kClosing;
    held->fd.reset();
    worker->channel->SendRelease(block).IgnoreError();
  }
  WatchForCapacityLocked(worker);
}

void BlockManager::AdvanceAllLocked(uint32_t device) {
  for (auto& [block, held] : blocks_) {
    if (held.device == device && held.stage == Stage::kReleasing && !held.with_worker) AdvanceLocked(block, &held);
  }
}

void BlockManager::OnRetryTimer() {
  uint64_t expirations;
  if (::read(retry_timer_.get(), &expirations, sizeof(expirations)) < 0) return;
  MutexLock lock(&mu_);
  for (const auto& [key, worker] : workers_) {
    if (key.second == WorkerKind::kMain && worker.channel != nullptr) AdvanceAllLocked(key.first);
  }
}

void BlockManager::ReleaseAgainLocked(BlockId block, Held* held) {
  Worker* const worker = FindWorkerLocked({held->device, WorkerKind::kMain});
  if (worker == nullptr) return;
  held->stage = Stage::kClosing;
  worker->channel->SendRelease(block).IgnoreError();
  WatchForCapacityLocked(worker);
}

void BlockManager::SupervisorDropped(BlockId block) {
  MutexLock lock(&mu_);
  const auto it = blocks_.find(block);
  if (it == blocks_.end() || it->second.stage != Stage::kReleasing) return;
  it->second.supervisor_dropped = true;
  AdvanceLocked(block, &it->second);
}

void BlockManager::WorkerIsUp(uint32_t device, WorkerKind worker_kind, UniqueFd socket, bool at_work) {
  const Key key(device, worker_kind);
  {
    MutexLock lock(&mu_);
    Worker& worker = workers_[key];
    worker.channel = std::make_unique<WorkerChannel>(std::move(socket));
    const absl::StatusOr<EventLoop::WatchId> watch = loop_.Watch(
        worker.channel->fd(), EPOLLIN, [this, key](uint32_t events) { OnWorkerEvent(key, events); });
    if (!watch.ok()) {
      spdlog::critical("device {}: cannot watch the socket of its worker: {}; restarting the broker", device,
                       std::string(watch.status().message()));
      abort();
    }
    worker.watch = *watch;
    worker.at_work = at_work;
    // The supervisor reports a worker that has ended already.
    worker.channel->SendBegin(epoch_).IgnoreError();
    if (worker_kind == WorkerKind::kMain) AdvanceAllLocked(device);
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    if (at_work) {
      core.WorkerAtWork(now, device, worker_kind, effects);
    } else {
      core.WorkerUp(now, device, worker_kind, effects);
    }
  });
}

void BlockManager::OnWorkerNews(const WorkerNews& news) {
  const core::DeviceReport report = {.generation = news.generation,
                                     .dropped = news.dropped,
                                     .abandoned = news.state == fd_store::WorkerState::kAbandoned,
                                     .drain_reason = news.drain_reason,
                                     .restarts_left = news.restarts_left,
                                     .last_failure = news.last_failure,
                                     // The supervisor gives a reason for every other end.
                                     .replaced = news.last_failure.empty()};
  if (news.state == fd_store::WorkerState::kRunning) {
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      core.ReportDevice(now, news.device, news.worker_kind, report, effects);
    });
    return;
  }
  const Key key(news.device, news.worker_kind);
  // Answers that the worker sent before its end still count.
  while (TakeReply(key)) {
  }
  const std::vector<BlockId> released = ForgetWorker(key, report.abandoned);
  const core::DeviceState state = news.state == fd_store::WorkerState::kGone ? core::DeviceState::kRebuilding
                                  : news.state == fd_store::WorkerState::kIdle ? core::DeviceState::kIdle
                                  : news.state == fd_store::WorkerState::kTesting
                                      ? core::DeviceState::kProbation
                                      : core::DeviceState::kStopped;
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ReportDevice(now, news.device, news.worker_kind, report, effects);
    core.WorkerDown(now, news.device, news.worker_kind, state, effects);
    // A worker that notices a loss first stands in for the monitor, which later reports that the device is back.
    if (news.state == fd_store::WorkerState::kLost) {
      core.DeviceSurveyed(now, news.device, {.lost = true, .trouble = news.last_failure}, effects);
    }
    for (const BlockId block : released) core.BlockReleased(now, block, absl::OkStatus(), effects);
  });
}

std::vector<BlockId> BlockManager::ForgetWorker(Key key, bool abandoned) {
  MutexLock lock(&mu_);
  Worker& worker = workers_[key];
  loop_.Unwatch(worker.watch);
  worker = Worker{};
  std::vector<BlockId> released;
  if (key.second == WorkerKind::kContext) return released;
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    Held& held = it->second;
    // An abandoned worker still has the fd.
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

void BlockManager::OnWorkerEvent(Key key, uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    MutexLock lock(&mu_);
    if (Worker* const worker = FindWorkerLocked(key); worker != nullptr) {
      worker->channel->Flush().IgnoreError();
      WatchForCapacityLocked(worker);
    }
  }
  for (int i = 0; i < kRepliesPerEvent && TakeReply(key); ++i) {
  }
}

bool BlockManager::TakeReply(Key key) {
  absl::StatusOr<WorkerReply> reply;
  bool earlier = false;
  {
    MutexLock lock(&mu_);
    Worker* const worker = FindWorkerLocked(key);
    if (worker == nullptr) return false;
    earlier = worker->at_work;
    reply = worker->channel->Read();
    if (!reply.ok() && !IsWouldBlock(reply.status())) {
      // The worker has ended, or one of its answers is lost.
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

void BlockManager::OnReply(Key key, WorkerReply reply) {
  if (auto* const created = std::get_if<CreatedBlock>(&reply)) {
    if (key.second == WorkerKind::kContext) {
      OnCreatedByHandle(key, *created);
    } else {
      OnCreated(key.first, std::move(*created));
    }
  } else if (const auto* const released = std::get_if<ReleasedBlock>(&reply)) {
    OnReleased(released->block, released->status);
  } else if (const auto* const begun = std::get_if<BegunWorker>(&reply)) {
    if (key.second == WorkerKind::kMain) return;
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      core.ContextMeasured(now, key.first, begun->context, effects);
    });
  }
}

void BlockManager::OnEarlierReply(Key key, WorkerReply reply) {
  if (const auto* const begun = std::get_if<BegunWorker>(&reply); begun != nullptr && OnBegun(key, *begun)) return;
  if (const auto* const retained = std::get_if<RetainedBlock>(&reply)) {
    MutexLock lock(&mu_);
    return workers_[key].retained.push_back(retained->block);
  }
  if (key.second == WorkerKind::kMain) {
    if (auto* const created = std::get_if<CreatedBlock>(&reply)) {
      OnCreatedEarlier(key.first, std::move(*created));
    } else if (const auto* const released = std::get_if<ReleasedBlock>(&reply)) {
      OnReleasedEarlier(key.first, *released);
    }
  }
  // The worker makes progress.
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerAtWork(now, key.first, key.second, effects);
  });
}

void BlockManager::OnCreatedEarlier(uint32_t device, CreatedBlock created) {
  // The core repeats the requests that were refused.
  if (!created.fd.ok()) return;
  {
    MutexLock lock(&mu_);
    // The block existed when this broker started, so an earlier broker had received that answer already.
    if (blocks_.contains(created.block)) return EndUnaskedLocked({device, WorkerKind::kMain}, created.block);
    if (expected_.erase(created.block) == 0) {
      return ReleaseOrphanLocked(created.block, device, *std::move(created.fd));
    }
  }
  HoldBlock(created.block, device, *std::move(created.fd)).IgnoreError();
}

void BlockManager::OnReleasedEarlier(uint32_t device, const ReleasedBlock& released) {
  MutexLock lock(&mu_);
  const auto it = blocks_.find(released.block);
  if (it == blocks_.end()) {
    if (!released.status.ok()) blocks_[released.block] = Held{.device = device, .stage = Stage::kRefused};
  } else if (it->second.stage == Stage::kRefused && released.status.ok()) {
    blocks_.erase(it);
  }
  // A worker's copy that is closed does not release a block whose fd the supervisor still holds.
}

bool BlockManager::OnBegun(Key key, const BegunWorker& begun) {
  {
    MutexLock lock(&mu_);
    Worker& worker = workers_[key];
    if (begun.epoch != epoch_) {
      // Answers to that earlier broker's requests follow, and then a new list of held blocks.
      worker.retained.clear();
      return false;
    }
    worker.at_work = false;
    for (const BlockId block : std::exchange(worker.retained, {})) {
      if (!expected_.contains(block)) worker.channel->SendRelease(block).IgnoreError();
    }
    WatchForCapacityLocked(&worker);
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.WorkerUp(now, key.first, key.second, effects);
    if (key.second == WorkerKind::kContext) core.ContextMeasured(now, key.first, begun.context, effects);
  });
  return true;
}

void BlockManager::OnCreatedByHandle(Key key, const CreatedBlock& created) {
  {
    MutexLock lock(&mu_);
    if (workers_[key].creating.erase(created.block) == 0) return EndUnaskedLocked(key, created.block);
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.BlockCreated(now, created.block, created.fd.status(), effects, created.handle.value_or(IpcHandle()));
  });
}

void BlockManager::OnCreated(uint32_t device, CreatedBlock created) {
  {
    MutexLock lock(&mu_);
    absl::flat_hash_set<BlockId>& creating = workers_[Key(device, WorkerKind::kMain)].creating;
    if (!creating.contains(created.block)) return EndUnaskedLocked({device, WorkerKind::kMain}, created.block);
    // A created block counts as being created until it is held; otherwise the core could request it again in between.
    if (!created.fd.ok()) creating.erase(created.block);
  }
  const absl::Status status =
      created.fd.ok() ? HoldBlock(created.block, device, *std::move(created.fd)) : created.fd.status();
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.BlockCreated(now, created.block, status, effects);
  });
}

absl::Status BlockManager::HoldBlock(BlockId block, uint32_t device, UniqueFd fd) {
  // The supervisor holds the fd before any client learns of the block.
  const absl::Status stored = fd_store_.Put(BlockKey(block), fd.get(), FdOwner::kClient);
  MutexLock lock(&mu_);
  workers_[Key(device, WorkerKind::kMain)].creating.erase(block);
  if (stored.ok()) {
    blocks_[block] = Held{.device = device, .fd = std::move(fd)};
  } else {
    ReleaseOrphanLocked(block, device, std::move(fd));
  }
  return stored;
}

void BlockManager::OnReleased(BlockId block, const absl::Status& status) {
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
