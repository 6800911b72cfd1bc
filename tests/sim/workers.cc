// What becomes of devices and their workers: they work, fail, hang and die, and the vault does as it is ordered.

#include <algorithm>
#include <set>
#include <utility>

#include "common/error.h"
#include "tests/sim/simulation.h"

namespace berth::core {

Simulation::WorkerKey Simulation::SomeWorker() {
  return std::next(workers_.begin(), Draw(workers_.size()))->first;
}

bool Simulation::IsThere(const Worker& worker) {
  if (worker.state == DeviceState::kReady) return true;
  // It may have ended since that was decided.
  if (!late_) Fail("a worker is asked that is not there");
  return false;
}

void Simulation::CarryRelease(const ReleaseBlock& release) {
  Worker& worker = workers_[{release.device, release.lane}];
  if (release.lost) {
    if (worker.made.contains(release.block)) Fail("a block is given up that is there");
    lost_.push_back(release.block);
    return;
  }
  if (!IsThere(worker)) return;
  // What an earlier broker had released, or never had made, is released at once.
  if (!worker.made.contains(release.block) && !options_.restarts) Fail("a block is released that was never made");
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
    return TellUp(key);
  }
  if (worker.jobs.empty()) return;
  const Job job = worker.jobs.front();
  worker.jobs.pop_front();
  absl::Status status;
  if (job.create.has_value()) {
    // An earlier broker had it made.
    const bool there = worker.made.contains(job.block);
    if (workers_fail_ && !there && Chance(8)) status = Refuse(Reason::kOutOfMemory, "the device is full");
    if (workers_fail_ && !there && Chance(2)) status = Refuse(Reason::kDriver, "the driver is unhappy");
    if (status.ok()) worker.made.try_emplace(job.block, Worker::Memory{*job.create, worker.generation});
    Tell([&](Core& core) { core.BlockCreated(now_, job.block, status, &effects_, HandleFor(job.block)); });
  } else {
    if (workers_fail_ && Chance(3)) status = Refuse(Reason::kDriver, "the driver will not let go");
    if (status.ok()) {
      worker.made.erase(job.block);
      worker.stuck.erase(job.block);
    } else {
      worker.stuck.insert(job.block);
    }
    Tell([&](Core& core) { core.BlockReleased(now_, job.block, status, &effects_); });
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
  TellUp(key);
}

void Simulation::NoteOver(WorkerKey key) {
  Worker& worker = workers_[key];
  if (key.second == Lane::kContext && !std::exchange(worker.over, true)) ++worker.generation;
}

void Simulation::StartContext(WorkerKey key) {
  Worker& worker = workers_[key];
  ++counts_.contexts;
  worker.generation = std::max<uint64_t>(worker.generation, 1);
  worker.state = DeviceState::kReady;
  worker.over = false;
  Report(key);
  TellUp(key);
  Tell([&](Core& core) { core.ContextMeasured(now_, key.first, MiB(Draw(3)), &effects_); });
}

void Simulation::TellUp(WorkerKey key) {
  Tell([&](Core& core) { core.WorkerUp(now_, key.first, key.second, &effects_); });
}

void Simulation::TellDown(WorkerKey key) {
  Tell([&](Core& core) { core.WorkerDown(now_, key.first, key.second, workers_[key].state, &effects_); });
}

void Simulation::EndWorker(WorkerKey key, bool stopped, bool may_stick) {
  Worker& worker = workers_[key];
  const auto& [device, lane] = key;
  // Stuck in the driver for now, with all that it had; another time it is gone.
  const bool stuck = may_stick && stopped && !worker.abandoned && Chance(60);
  worker.abandoned = stuck;
  worker.hung = worker.behind = false;
  worker.state = stopped               ? DeviceState::kStopped
                 : lane == Lane::kMain ? DeviceState::kRebuilding
                                       : DeviceState::kIdle;
  NoteOver(key);
  if (!stuck && lane == Lane::kContext) {
    counts_.lost_blocks += worker.made.size();
    worker.made.clear();
  }
  Report(key);
  TellDown(key);
  if (stuck) {
    ++counts_.abandoned_workers;
    return;
  }
  ++counts_.worker_deaths;
  // What it was making never was. What it was releasing died with it, where it had taken that over already.
  std::set<BlockId> died = std::exchange(worker.stuck, {});
  for (const Job& job : std::exchange(worker.jobs, {})) {
    if (job.create.has_value()) continue;
    died.insert(job.block);
  }
  if (lane == Lane::kContext) return;
  for (const BlockId block : died) {
    if (Chance(50)) continue;
    worker.made.erase(block);
    Tell([&](Core& core) { core.BlockReleased(now_, block, absl::OkStatus(), &effects_); });
  }
}

void Simulation::Report(WorkerKey key) {
  const Worker& worker = workers_[key];
  const DeviceReport report = {.generation = worker.generation,
                               .dropped = worker.dropped,
                               .abandoned = worker.abandoned,
                               .drain_reason = drained_.contains(key.first) ? drained_.at(key.first) : ""};
  Tell([&](Core& core) { core.ReportDevice(now_, key.first, key.second, report, &effects_); });
}

void Simulation::LoseWorker(WorkerKey key) {
  Worker& worker = workers_[key];
  if (worker.abandoned || worker.state == DeviceState::kStopped) return;
  if (key.second == Lane::kMain) {
    ++worker.generation;
    Report(key);
    Carry();
  }
  if (worker.state == DeviceState::kReady) return EndWorker(key, /*stopped=*/true, /*may_stick=*/false);
  worker.state = DeviceState::kStopped;
  TellDown(key);
}

void Simulation::DropWorker(WorkerKey key) {
  Worker& worker = workers_[key];
  if (worker.abandoned) return;
  worker.dropped = true;
  if (worker.state == DeviceState::kReady) return EndWorker(key, /*stopped=*/true, /*may_stick=*/false);
  worker.state = DeviceState::kStopped;
  Report(key);
  TellDown(key);
}

void Simulation::FollowOrder() {
  const WorkerKey key = SomeWorker();
  Worker& worker = workers_[key];
  if (worker.orders.empty()) return;
  const DeviceOrder order = worker.orders.front();
  worker.orders.pop_front();
  const bool context = key.second == Lane::kContext;
  if (order == DeviceOrder::kStart) {
    if (worker.state == DeviceState::kIdle) StartContext(key);
    return;
  }
  if (order == DeviceOrder::kEnable) {
    // It may have been enabled, and abandoned again, since.
    if (worker.abandoned || worker.dropped || worker.state != DeviceState::kStopped) return;
    ++counts_.enabled_devices;
    if (context) {
      worker.state = DeviceState::kIdle;
      return TellDown(key);
    }
    worker.state = DeviceState::kReady;
    return TellUp(key);
  }
  if (order == DeviceOrder::kDrain || order == DeviceOrder::kUndrain) return;
  if (order == DeviceOrder::kLose) return LoseWorker(key);
  if (order == DeviceOrder::kDrop) return DropWorker(key);
  if (order == DeviceOrder::kReset && !context) {
    ++counts_.resets;
    ++worker.generation;
    Report(key);
    Carry();
  }
  counts_.idle_contexts += order == DeviceOrder::kEnd ? 1 : 0;
  if (worker.state == DeviceState::kReady) {
    // It is killed, and gone a while later.
    NoteOver(key);
    if (context && Chance(50)) {
      Report(key);
      Carry();
    }
    EndWorker(key, /*stopped=*/false);
  } else if (context && worker.state == DeviceState::kIdle) {
    TellDown(key);
  }
}

}  // namespace berth::core
