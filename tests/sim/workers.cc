// Devices and their workers: the workers work, fail, hang and die, and the supervisor carries out its commands.

#include <algorithm>
#include <set>
#include <utility>

#include <berth/error.h>

#include "tests/sim/simulation.h"

namespace berth::core {

Simulation::WorkerKey Simulation::SomeWorker() {
  return std::next(workers_.begin(), Draw(workers_.size()))->first;
}

bool Simulation::IsThere(const Worker& worker) {
  if (worker.state == DeviceState::kReady) return true;
  // The worker may have ended since the decision.
  if (!late_) Fail("a worker is asked that is not there");
  return false;
}

void Simulation::ApplyRelease(const ReleaseBlock& release) {
  Worker& worker = workers_[{release.device, release.worker_kind}];
  if (release.lost) {
    if (worker.made.contains(release.block)) Fail("a block is given up that is there");
    lost_.push_back(release.block);
    return;
  }
  if (!IsThere(worker)) return;
  // A block that an earlier broker had released, or never had allocated, is released at once.
  const bool may_be_gone = options_.restarts || options_.stops;
  if (!worker.made.contains(release.block) && !may_be_gone) Fail("a block is released that was never made");
  for (const auto& [channel, process] : processes_) {
    for (const auto& [import, block] : process.mapped) {
      if (block == release.block) Fail("memory goes back that a living process was given");
    }
  }
  worker.jobs.push_back({.block = release.block});
}

void Simulation::Work() {
  const WorkerKey key = SomeWorker();
  Worker& worker = workers_[key];
  if (worker.state != DeviceState::kReady || worker.hung) return;
  if (worker.behind && !dead_) {
    worker.behind = false;
    CatchUp(worker);
    return NotifyUp(key);
  }
  if (worker.jobs.empty()) return;
  const Job job = worker.jobs.front();
  worker.jobs.pop_front();
  absl::Status status;
  if (job.create.has_value()) {
    // An earlier broker had it allocated.
    const bool there = worker.made.contains(job.block);
    if (workers_fail_ && !there && Chance(8)) status = Refuse(Reason::kOutOfMemory, "the device is full");
    if (workers_fail_ && !there && Chance(2)) status = Refuse(Reason::kDriver, "the driver is unhappy");
    if (status.ok()) worker.made.try_emplace(job.block, Worker::Memory{*job.create, worker.generation});
    Notify([&](Core& core) { core.BlockCreated(now_, job.block, status, &effects_, HandleFor(job.block)); });
  } else {
    if (workers_fail_ && Chance(3)) status = Refuse(Reason::kDriver, "the driver will not let go");
    if (status.ok()) {
      worker.made.erase(job.block);
      worker.stuck.erase(job.block);
    } else {
      worker.stuck.insert(job.block);
    }
    Notify([&](Core& core) { core.BlockReleased(now_, job.block, status, &effects_); });
  }
}

void Simulation::BreakWorker() {
  const WorkerKey key = SomeWorker();
  Worker& worker = workers_[key];
  if (worker.state != DeviceState::kReady || Chance(40)) return;
  if (Chance(25)) {
    counts_.hung_workers += worker.hung ? 0 : 1;
    worker.hung = true;
    return;
  }
  EndWorker(key, /*stopped=*/Chance(20));
}

void Simulation::MendWorker() {
  const WorkerKey key = SomeWorker();
  Worker& worker = workers_[key];
  if (worker.abandoned) return EndWorker(key, /*stopped=*/true);
  if (worker.state == DeviceState::kStopped) return dead_ ? void() : OperateDevice();
  if (worker.state != DeviceState::kRebuilding) return;
  worker.state = DeviceState::kReady;
  NotifyUp(key);
}

void Simulation::MarkOver(WorkerKey key) {
  Worker& worker = workers_[key];
  if (key.second == WorkerKind::kContext && !std::exchange(worker.over, true)) ++worker.generation;
}

void Simulation::StartContext(WorkerKey key) {
  Worker& worker = workers_[key];
  ++counts_.contexts;
  worker.generation = std::max<uint64_t>(worker.generation, 1);
  worker.state = DeviceState::kReady;
  worker.over = false;
  Report(key);
  NotifyUp(key);
  Notify([&](Core& core) { core.ContextMeasured(now_, key.first, MiB(Draw(3)), &effects_); });
}

void Simulation::NotifyUp(WorkerKey key) {
  Notify([&](Core& core) { core.WorkerUp(now_, key.first, key.second, &effects_); });
}

void Simulation::NotifyDown(WorkerKey key) {
  Notify([&](Core& core) { core.WorkerDown(now_, key.first, key.second, workers_[key].state, &effects_); });
}

void Simulation::EndWorker(WorkerKey key, bool stopped, bool may_stick) {
  Worker& worker = workers_[key];
  const auto& [device, worker_kind] = key;
  // Either it is stuck in the driver for now, with all its memory, or it ends.
  const bool stuck = may_stick && stopped && !worker.abandoned && Chance(60);
  worker.abandoned = stuck;
  worker.hung = worker.behind = false;
  worker.state = stopped               ? DeviceState::kStopped
                 : worker_kind == WorkerKind::kMain ? DeviceState::kRebuilding
                                       : DeviceState::kIdle;
  MarkOver(key);
  if (!stuck && worker_kind == WorkerKind::kContext) {
    counts_.lost_blocks += worker.made.size();
    worker.made.clear();
  }
  Report(key);
  NotifyDown(key);
  if (stuck) {
    ++counts_.abandoned_workers;
    return;
  }
  ++counts_.worker_deaths;
  // Blocks in creation never existed. Blocks in release end with the worker, where it had received the request.
  std::set<BlockId> died = std::exchange(worker.stuck, {});
  for (const Job& job : std::exchange(worker.jobs, {})) {
    if (job.create.has_value()) continue;
    died.insert(job.block);
  }
  if (worker_kind == WorkerKind::kContext) return;
  for (const BlockId block : died) {
    if (Chance(50)) continue;
    worker.made.erase(block);
    Notify([&](Core& core) { core.BlockReleased(now_, block, absl::OkStatus(), &effects_); });
  }
}

void Simulation::Report(WorkerKey key) {
  const Worker& worker = workers_[key];
  const DeviceReport report = {.generation = worker.generation,
                               .dropped = worker.dropped,
                               .abandoned = worker.abandoned,
                               .drain_reason = drained_.contains(key.first) ? drained_.at(key.first) : ""};
  Notify([&](Core& core) { core.ReportDevice(now_, key.first, key.second, report, &effects_); });
}

void Simulation::LoseWorker(WorkerKey key) {
  Worker& worker = workers_[key];
  if (worker.abandoned || worker.state == DeviceState::kStopped) return;
  if (key.second == WorkerKind::kMain) {
    ++worker.generation;
    Report(key);
    Apply();
  }
  if (worker.state == DeviceState::kReady) return EndWorker(key, /*stopped=*/true, /*may_stick=*/false);
  worker.state = DeviceState::kStopped;
  NotifyDown(key);
}

void Simulation::DropWorker(WorkerKey key) {
  Worker& worker = workers_[key];
  if (worker.abandoned) return;
  worker.dropped = true;
  if (worker.state == DeviceState::kReady) return EndWorker(key, /*stopped=*/true, /*may_stick=*/false);
  worker.state = DeviceState::kStopped;
  Report(key);
  NotifyDown(key);
}

void Simulation::FollowCommand() {
  const WorkerKey key = SomeWorker();
  Worker& worker = workers_[key];
  if (worker.commands.empty()) return;
  const WorkerCommand command = worker.commands.front();
  worker.commands.pop_front();
  const bool context = key.second == WorkerKind::kContext;
  if (command == WorkerCommand::kStart) {
    if (worker.state == DeviceState::kIdle) StartContext(key);
    return;
  }
  if (command == WorkerCommand::kEnable) {
    // The device may have been enabled, and abandoned again, since.
    if (worker.abandoned || worker.dropped || worker.state != DeviceState::kStopped) return;
    ++counts_.enabled_devices;
    if (context) {
      worker.state = DeviceState::kIdle;
      return NotifyDown(key);
    }
    worker.state = DeviceState::kReady;
    return NotifyUp(key);
  }
  if (command == WorkerCommand::kDrain || command == WorkerCommand::kUndrain) return;
  if (command == WorkerCommand::kLose) return LoseWorker(key);
  if (command == WorkerCommand::kDrop) return DropWorker(key);
  if (command == WorkerCommand::kReset && !context) {
    ++counts_.resets;
    ++worker.generation;
    Report(key);
    Apply();
  }
  counts_.idle_contexts += command == WorkerCommand::kEnd ? 1 : 0;
  if (worker.state == DeviceState::kReady) {
    // The worker is killed, and ends some time later.
    MarkOver(key);
    if (context && Chance(50)) {
      Report(key);
      Apply();
    }
    EndWorker(key, /*stopped=*/false);
  } else if (context && worker.state == DeviceState::kIdle) {
    NotifyDown(key);
  }
}

}  // namespace berth::core
