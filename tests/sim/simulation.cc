#include "tests/sim/simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/core/devices/ended_workers.h"

namespace berth::core {
namespace {

Config MakeConfig(const Simulation::Options& options) {
  const uint64_t seed = options.seed;
  Config config{.node = 7, .incarnation = 9};
  config.pools = {{.name = "gpu-tests", .cap = 2, .ageing = absl::Milliseconds(700), .weights = {{1001, 3}}},
                  {.name = "wide", .cap = 8, .tenant_cap = seed % 4 == 1 ? uint64_t{5} : uint64_t{0}},
                  {.name = "third", .cap = 4, .tenant_cap = seed % 3 == 0 ? uint64_t{3} : uint64_t{0}}};
  if (!options.wide) config.limits.passes_before_hold = 1 + seed % 16;
  for (uint32_t ordinal = 0; ordinal < 2; ++ordinal) {
    config.devices.push_back(DeviceConfig{.ordinal = ordinal,
                                          .uuid = absl::StrCat("HOST-", ordinal),
                                          .kind = ordinal == 0 ? MemoryKind::kHost : MemoryKind::kCudaVmm,
                                          .total = MiB(64),
                                          .budget = MiB(32),
                                          .permit_reserve = MiB(2),
                                          .context = MiB(1),
                                          .others = MiB(seed % 3),
                                          .facts = {.sm_count = 10 * ordinal, .cc_major = 9 * ordinal}});
  }
  if (seed % 7 == 3 && !options.wide) {
    // A device that an operator removes from the node.
    config.devices.push_back(config.devices.front());
    config.devices.back().ordinal = 2;
    config.devices.back().uuid = "HOST-2";
  }
  config.warm_blocks_per_size = seed % 3;
  config.warm_limit = MiB(12);
  config.warm_sizes = 2;
  config.calls = {.base = absl::Seconds(2), .per_gib = absl::Seconds(1)};
  config.warm_refill_delay = absl::Milliseconds(seed % 2 * 10);
  config.context_idle = absl::Milliseconds(300);
  config.limits.modules = {.largest = Bytes(40),
                           .total = Bytes(100),
                           .tenant = Bytes(60),
                           .modules = 8,
                           .compile_patience = absl::Seconds(2)};
  // Some runs have a hold limit for permits.
  if (seed % 3 == 1 && !options.wide) config.pools[1].hold_limit = absl::Milliseconds(1'500);
  // In some runs quotas apply to each tenant, too.
  if (seed % 5 == 2 && !options.wide) {
    config.quotas = {.all = {.permits = 4, .waiters = 5, .sessions = 6, .blocks = 5, .names = 2},
                     .users = {{1001, {.permits = 2, .blocks = 4}}}};
  }
  if (seed % 4 == 3) {
    config.devices[1].cuda_ipc = false;
    config.devices[1].why_no_cuda_ipc = "it cannot";
  }
  // Half of the runs have limits so small that each is reached.
  if (seed % 2 == 0 && !options.wide) {
    config.limits = Limits{.sessions = 20,
                           .channels_per_session = 3,
                           .waiters_per_pool = 6,
                           .blocks = 12,
                           .imports_per_block = 2,
                           .imports_per_channel = 3,
                           .grants_per_block = 2,
                           .answers = {.per_channel = 20},
                           .queued_deliveries_per_channel = 1,
                           .unacknowledged_fds_per_channel = 2,
                           .unacknowledged_fds_per_tenant = 4,
                           .passes_before_hold = 3,
                           .waiting_allocations_per_device = 1,
                           .passes_before_reserve = 2,
                           .longest_reserve = absl::Milliseconds(300),
                           .reservations_per_session = 2,
                           .plans_per_session = 1,
                           .modules = {.largest = Bytes(40),
                                       .total = Bytes(100),
                                       .tenant = Bytes(60),
                                       .modules = 5,
                                       .compiles_per_user = 2,
                                       .waiters_per_user = 1,
                                       .compile_patience = absl::Seconds(2)}};
  }
  return config;
}

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Simulation::Simulation(const Options& options)
    : options_(options),
      random_(Mix(options.seed)),
      config_(MakeConfig(options)),
      last_drawn_(options.seed * 1'000'003) {
  quotas_since_ = {config_.quotas};
  core_ = NewCore();
  for (const DeviceConfig& device : config_.devices) {
    workers_[{device.ordinal, WorkerKind::kMain}];
    Worker& context = workers_[{device.ordinal, WorkerKind::kContext}];
    context.state = DeviceState::kIdle;
    context.generation = 0;
  }
  LeaveModules();
}

std::unique_ptr<Core> Simulation::NewCore() {
  return std::make_unique<Core>(
      config_, [this] { return Mix(++last_drawn_) | 1; },
      [this](StreamKey stream) {
        if (pages_lost_) return FenceValues();
        if (!MayRead(stream.channel)) Fail("values are read of a page that is not there");
        return fence_values_[stream];
      },
      [this](ChannelId channel) { return FindPermitSlot(channel); },
      [this](ChannelId channel) { return FindTakeUpWords(channel); });
}

bool Simulation::MayRead(ChannelId channel) const {
  if (pages_.contains(channel) || unmade_pages_.contains(channel)) return true;
  // A pending effect makes the page.
  return std::any_of(effects_.begin(), effects_.end(), [&](const Effect& effect) {
    const auto* const made = std::get_if<MakeFencePage>(&effect.what);
    return made != nullptr && made->channel == channel;
  });
}

IpcHandle Simulation::HandleFor(BlockId block) {
  IpcHandle handle;
  for (int i = 0; i < 8; ++i) handle.bytes[i] = static_cast<std::byte>(block.value() >> (8 * i));
  return handle;
}

uint64_t Simulation::Draw(uint64_t below) {
  random_ = Mix(random_);
  return random_ % below;
}

void Simulation::Fail(const std::string& what) {
  if (status_.ok())
    status_ = absl::InternalError(absl::StrCat("seed ", options_.seed, ", step ", step_, ": ", what));
}

void Simulation::Crowd(uint64_t sessions) {
  for (uint64_t i = 0; i < sessions; ++i) {
    const Client client = NewClient();
    const auto session =
        core_->OpenSession(now_, client.secret, client.tenant, "crowd", ProcessInfo{.pid = 1});
    if (!session.ok()) return Fail("a session is refused");
    const auto channel =
        core_->JoinSession(now_, *session, client.secret, client.tenant, ProcessInfo{.pid = 2});
    if (!channel.ok()) return Fail("a process is refused");
    ++counts_.sessions;
    clients_.emplace(*session, client);
    processes_.emplace(*channel, Process{.session = *session});
  }
}

void Simulation::Run(uint64_t steps) {
  for (uint64_t i = 0; i < steps && status_.ok(); ++i) Step();
}

void Simulation::RunFor(absl::Duration duration) {
  for (const absl::Time end = now_ + duration; now_ < end && status_.ok();) Step();
}

void Simulation::Step() {
  ++step_;
  if (options_.restarts && Draw(1000) < 12) {
    Restart();
  } else if (options_.stops && Draw(1000) < 6) {
    StopAndStart();
  } else if (options_.stops && Chance(10)) {
    Resume();
  } else {
    Act();
  }
  Apply();
  Check();
}

void Simulation::Act() {
  BeginAct();
  if (options_.pauses && Chance(25)) return Pause();
  if (options_.only_permits && Chance(20)) return UseCached();
  const uint64_t die = Draw(1000);
  if (die < 40) return OpenOrJoin();
  if (die < 410) return Ask();
  if (die < 430) return UseCached();
  if (die < 470) return Repeat();
  if (die < 505) return ForgetOne();
  if (die < 517) return CancelOne();
  if (die < 635) return Acknowledge();
  if (die < 665) return LetGo();
  if (die < 695) return GiveBack();
  if (die < 707) return EndSomething();
  if (die < 912) return Work();
  if (die < 917) return BreakWorker();
  if (die < 931) return MendWorker();
  if (die < 946) return FollowCommand();
  if (die < 953) return Operate();
  if (die < 963) return UseModules();
  if (die < 978) return RunStreams();
  if (die < 982) return Monitor();
  if (die < 993) return PassTime();
  Look();
}

void Simulation::Apply() {
  if (dead_) return;
  Persist();
  if (stalled_) return;
  Digest(0, effects_.size());
  RecordExpired(0, effects_.size());
  for (const Effect& effect : effects_) {
    if (effect.number != ++last_effect_) Fail("an effect's number is not the next");
    ApplyEffect(effect);
  }
  effects_.clear();
  persisted_steps_.clear();
  while (!lost_.empty()) {
    const BlockId block = lost_.front();
    lost_.pop_front();
    core_->BlockReleased(now_, block, absl::OkStatus(), &effects_);
  }
  if (!effects_.empty()) Apply();
}

void Simulation::ApplyEffect(const Effect& effect) {
  if (const auto* reply = std::get_if<Reply>(&effect.what)) {
    ApplyReply(*reply);
  } else if (const auto* create = std::get_if<CreateBlock>(&effect.what)) {
    Worker& worker = workers_[{create->device, create->worker_kind}];
    if (IsThere(worker)) worker.jobs.push_back({.block = create->block, .create = create->bytes});
  } else if (const auto* release = std::get_if<ReleaseBlock>(&effect.what)) {
    ApplyRelease(*release);
  } else if (const auto* deliver = std::get_if<Deliver>(&effect.what)) {
    ApplyDeliver(*deliver);
  } else if (const auto* closed = std::get_if<CloseChannel>(&effect.what)) {
    const auto process = processes_.find(closed->channel);
    if (process != processes_.end() && !process->second.hung_up) Fail("a channel is closed that is in use");
  } else if (const auto* made = std::get_if<MakeFencePage>(&effect.what)) {
    unmade_pages_.erase(made->channel);
    if (!pages_.insert(made->channel).second && !resuming_) Fail("a page is made twice");
  } else if (const auto* gone = std::get_if<DropFencePage>(&effect.what)) {
    ApplyDropPage(gone->channel);
  } else if (const auto* channel = std::get_if<DropChannel>(&effect.what)) {
    ApplyDropChannel(channel->channel);
  } else if (const auto* session = std::get_if<DropSession>(&effect.what)) {
    ApplyDropSession(session->session);
  } else if (const auto* command = std::get_if<SendWorkerCommand>(&effect.what)) {
    ApplyCommand(*command);
  } else if (const auto* work = std::get_if<ModuleWork>(&effect.what)) {
    ApplyModuleWork(*work);
  } else if (const auto* record = std::get_if<LogRecord>(&effect.what)) {
    if (records_lost_ ? record->number <= last_record_ : record->number != last_record_ + 1) {
      Fail("a log record's number is not the next");
    }
    last_record_ = record->number;
    records_lost_ = false;
  } else if (const auto* lease = std::get_if<LeaseRecord>(&effect.what)) {
    RecordLease(*lease);
  } else if (const auto* look = std::get_if<LookAtProcesses>(&effect.what)) {
    ApplyLook(*look);
  }
}

void Simulation::ApplyDropPage(ChannelId channel) {
  const bool unmade = unmade_pages_.erase(channel) > 0 || resuming_;
  if (!unmade && !pages_.contains(channel)) return Fail("a page is dropped that is not there");
  SettleCached();
  left_cached_.erase(channel);
  if (const auto process = processes_.find(channel); process != processes_.end()) {
    process->second.cached.reset();
    process->second.in_use = process->second.owes_look = process->second.keeps = false;
    // A process that has not rejoined may have opened streams already. They end with the page.
    process->second.streams.clear();
    process->second.uses.clear();
  }
  pages_.erase(channel);
  permit_slots_.erase(channel);
  const auto theirs = [&](const auto& entry) { return entry.first.channel == channel; };
  std::erase_if(fence_values_, theirs);
  std::erase_if(queued_, theirs);
  alone_.Forget(channel);
}

void Simulation::ApplyDropSession(SessionId session) {
  if (clients_.erase(session) == 0) Fail("a session is dropped twice");
  std::erase_if(permits_, [&](const auto& permit) { return permit.second.first == session; });
  std::erase_if(plans_, [&](const auto& plan) { return plan.second->session == session; });
}

void Simulation::ApplyCommand(const SendWorkerCommand& command) {
  const bool both = command.command == WorkerCommand::kReset || command.command == WorkerCommand::kDrop ||
                    command.command == WorkerCommand::kLose;
  const bool context = command.command == WorkerCommand::kStart || command.command == WorkerCommand::kEnd;
  if (command.command == WorkerCommand::kEnable && workers_[{command.device, command.worker_kind}].abandoned) {
    Fail("a device is enabled whose worker is not gone");
  }
  for (const WorkerKind worker_kind : kWorkerKinds) {
    if (both || worker_kind == (context ? WorkerKind::kContext : command.worker_kind)) {
      workers_[{command.device, worker_kind}].commands.push_back(command.command);
    }
  }
}

void Simulation::ApplyDropChannel(ChannelId channel) {
  ghosts_.erase(channel);
  const auto found = processes_.find(channel);
  if (found == processes_.end()) return;
  if (const ChannelId now = found->second.replaced_by) {
    ++counts_.rejoined;
    if (processes_.contains(now)) processes_.at(now).mapped.merge(found->second.mapped);
    processes_.erase(found);
    return;
  }
  // The process lives; then its session must hold nothing.
  const Process& process = found->second;
  if (!process.hung_up) Fail("a channel is dropped whose process lives and holds it");
  if (!process.mapped.empty()) Fail("a channel is dropped whose process may have memory mapped");
  if (!clients_.at(process.session).ended) Fail("a channel is dropped of a session that goes on");
  if (!resuming_) SettleOffers();
  for (const auto& [permit, held] : permits_) {
    if (held.first == process.session && !held.second.empty())
      Fail("a session is dropped that holds a permit");
  }
  ++counts_.left_alive;
  processes_.erase(found);
}

void Simulation::ApplyDeliver(const Deliver& deliver) {
  const auto found = processes_.find(deliver.channel);
  if (ghosts_.contains(deliver.channel) || (found != processes_.end() && found->second.away)) return;
  if (found == processes_.end() || found->second.hung_up) {
    // The process may have ended since the decision.
    if (!late_) Fail("a delivery goes to nobody");
    return;
  }
  Process& process = found->second;
  if ((resuming_ || process.may_skip) && deliver.delivery.number <= process.last_delivery) {
    process.acknowledged = std::min(process.acknowledged, deliver.delivery.number - 1);
    return;
  }
  const bool skips = process.may_skip && deliver.delivery.number > process.last_delivery;
  if (deliver.delivery.number != ++process.last_delivery && !skips) Fail("a delivery's number is not the next");
  process.last_delivery = deliver.delivery.number;
  if (deliver.delivery.what == attach::DeliveryKind::kEnded) {
    if (!clients_.at(process.session).ended) Fail("a session is said to have ended that goes on");
    return;
  }
  // A recall may come late, for a block that no longer exists.
  if (deliver.delivery.what == attach::DeliveryKind::kRecall) return;
  if (deliver.delivery.what == attach::DeliveryKind::kAskBack) return;
  if (deliver.delivery.what == attach::DeliveryKind::kOverdue) return;
  if (deliver.delivery.what == attach::DeliveryKind::kRevoked) {
    ++counts_.notified_revoked;
    if (permits_.contains(PermitId(deliver.delivery.permit)))
      Fail("a permit is said to be revoked that is not");
    return;
  }
  if (deliver.delivery.what == attach::DeliveryKind::kPlanStale) {
    ++counts_.notified_stale;
    return;
  }
  if (deliver.delivery.what == attach::DeliveryKind::kHandOver) {
    process.wanted.insert(BlockId(deliver.delivery.block));
    return;
  }
  if (deliver.delivery.what == attach::DeliveryKind::kHandleBlock) {
    // The block may no longer exist.
    process.mapped.emplace(ImportId(deliver.delivery.import), BlockId(deliver.delivery.block));
    return;
  }
  const bool module = deliver.delivery.what == attach::DeliveryKind::kModule;
  if (module && !deliver.read_only) Fail("a process could write a module that others are given");
  const bool page = deliver.delivery.what == attach::DeliveryKind::kOwnPage ||
                    deliver.delivery.what == attach::DeliveryKind::kForeignPage;
  if (page) ApplyPage(process, deliver);
  if (deliver.delivery.what == attach::DeliveryKind::kBlock) {
    const BlockId block(deliver.delivery.block);
    if (!IsMade(block)) Fail("a delivery names a block that is not there");
    process.mapped.emplace(ImportId(deliver.delivery.import), block);
    if (deliver.delivery.shared == 0) {
      alone_.Map(deliver.channel, block);
    } else {
      alone_.Unmap(deliver.channel, block);
    }
    if (!deliver.read_only) process.writable.insert(ImportId(deliver.delivery.import));
  }
  process.fds_under_way.insert(deliver.delivery.number);
  if (process.fds_under_way.size() > config_.limits.unacknowledged_fds_per_channel)
    Fail("too many fds on a channel");
  const Tenant tenant = clients_.at(process.session).tenant;
  uint64_t fds = 0;
  for (const auto& [channel, other] : processes_) {
    if (!other.hung_up && clients_.at(other.session).tenant == tenant) fds += other.fds_under_way.size();
  }
  if (fds > config_.limits.unacknowledged_fds_per_tenant) Fail("too many fds for a tenant");
}

void Simulation::ApplyPage(Process& process, const Deliver& deliver) {
  if (deliver.delivery.what == attach::DeliveryKind::kOwnPage) {
    if (deliver.read_only) Fail("a process cannot write its own page");
    if (process.own_page == 0) process.own_page = deliver.delivery.number;
    return;
  }
  if (!deliver.read_only) Fail("a process could write another's page");
  if (!process.pages.insert(ChannelId(deliver.delivery.owner)).second) Fail("a page is sent twice");
}

void Simulation::Check() {
  SettleOffers();
  SettleCached();
  std::erase_if(ghosts_, [](const auto& ghost) { return !ghost.second.unproven; });
  std::erase_if(permits_, [](const auto& permit) { return permit.second.second.empty(); });
  CheckPools();
  CheckDevices();
  if (step_ % options_.check_records_every == 0) CheckRecords();
  if (step_ % options_.check_every != 0) return;
  if (const absl::Status accounts = core_->CheckInvariants(); !accounts.ok()) Fail(std::string(accounts.message()));
  CheckPlans();
  CheckQuotas();
  CheckLeases();
  CheckNames();
  const std::vector<PermitView> out = core_->ListPermits(Admin(), "");
  if (out.size() != permits_.size()) {
    Fail(absl::StrCat(out.size(), " permits are out, ", permits_.size(), " were told of"));
  }
  for (const PermitView& permit : out) {
    const auto known = permits_.find(permit.id);
    if (known == permits_.end() || known->second.second.size() != permit.depth) {
      Fail(absl::StrCat("permit ", permit.id.value(), " is not as deep as told"));
    }
  }
}

void Simulation::RecordExpired(size_t begin, size_t end) {
  // The lease's record comes after all other effects of a step.
  for (size_t i = begin; i < end; ++i) {
    const auto* const lease = std::get_if<LeaseRecord>(&effects_[i].what);
    if (lease == nullptr || lease->kind != LeaseKind::kPermit || lease->end != LeaseEnd::kExpired) continue;
    ++counts_.expired;
    permits_.erase(PermitId(lease->id));
  }
}

void Simulation::RecordLease(const LeaseRecord& lease) {
  const auto key = std::make_pair(lease.kind, lease.id);
  if (lease.end == LeaseEnd::kNone) {
    if (!leases_.insert(key).second) Fail("a lease is said to be granted that is out");
  } else if (leases_.erase(key) == 0 && !(resuming_ && !settling_)) {
    // Until the broker has reported the granted leases, the end of a lease may arrive without its grant.
    Fail("a lease is said to have ended that was not out");
  }
}

void Simulation::CheckLeases() {
  const std::vector<LeaseRecord> out = core_->ListLeases();
  for (const LeaseRecord& lease : out) {
    if (!leases_.contains({lease.kind, lease.id})) Fail("a lease is out of whose grant nothing was said");
  }
  if (out.size() != leases_.size()) Fail("a lease is gone of whose end nothing was said");
}

void Simulation::CheckPools() {
  for (const PoolView& pool : core_->ListPools()) {
    const PoolConfig& config = pool.config;
    uint64_t& before = out_before_[config.name];
    if (pool.out > config.cap && pool.out > before && !settling_)
      Fail(absl::StrCat("pool ", config.name, " is over its cap"));
    before = pool.out;
    if (!pool.exclusive || pool.holders == 1) continue;
    // Or with its gang.
    std::set<uint64_t> gangs;
    for (const PermitView& permit : core_->ListPermits(Admin(), config.name)) gangs.insert(permit.gang);
    if (gangs.size() != 1 || gangs.contains(0)) Fail("an exclusive permit is not alone");
  }
}

void Simulation::CheckDevices() {
  for (const DeviceView& device : core_->ListDevices()) {
    const uint64_t charged = device.bytes.charged().count();
    uint64_t made = 0;
    for (const WorkerKind worker_kind : kWorkerKinds) {
      for (const auto& [block, memory] : workers_[{device.ordinal, worker_kind}].made) made += memory.bytes.count();
    }
    if (made > charged) Fail("the driver has given out more than is charged");
  }
  // Between two checks a limit may have changed twice.
  if (options_.check_every > 8) return;
  auto before = std::exchange(charged_before_, {});
  for (const BudgetView& view : core_->ListBudgets(Admin())) {
    const uint64_t owner = view.layer == Layer::kSession ? view.session.value() : view.tenant.uid;
    const std::array<uint64_t, 3> key = {static_cast<uint64_t>(view.layer), view.device, owner};
    const uint64_t charged = view.bytes.charged().count() - view.bytes.daemon.count();
    charged_before_[key] = charged;
    // Only quarantine charges a tenant past its limit, because it needs no request.
    if (view.layer == Layer::kTenant && view.bytes.quarantined.count() > 0) continue;
    if (view.limit.has_value() && charged > view.limit->count() && charged > before[key] && !settling_) {
      Fail(absl::StrCat("a ", LayerName(view.layer), " is over its budget"));
    }
  }
}

void Simulation::WorkAll() {
  const auto has_jobs = [](const auto& worker) { return !worker.second.jobs.empty(); };
  while (status_.ok() && std::any_of(workers_.begin(), workers_.end(), has_jobs)) {
    ++step_;
    Work();
    Apply();
    Check();
  }
}

void Simulation::Finish() {
  // All pending work ends, in some order.
  while (status_.ok() && !(processes_.empty() && clients_.empty())) {
    ++step_;
    if (!ghosts_.empty()) EndByOperator(ghosts_.begin()->second.session);
    const uint64_t before = processes_.size() + clients_.size();
    if (Chance(50)) {
      Work();
    } else {
      EndSomething();
    }
    Apply();
    Check();
    if (processes_.size() + clients_.size() > before) Fail("something comes while everything ends");
  }
  AsOperator([this](const Caller& caller) { DeletePublished(caller); });
  // Blocks freed while their uses continued are checked again.
  now_ += absl::Seconds(1);
  core_->Tick(now_, &effects_);
  Apply();
  // Workers restart, and release the blocks that they could not release before.
  workers_fail_ = false;
  for (auto& [key, worker] : workers_) {
    if (worker.abandoned) EndWorker(key, /*stopped=*/true);
    Apply();
    worker.hung = false;
    for (const WorkerCommand command : std::exchange(worker.commands, {})) {
      if (command == WorkerCommand::kStart && worker.state == DeviceState::kIdle) StartContext(key);
    }
    const bool serves = key.second == WorkerKind::kMain || worker.state == DeviceState::kReady;
    if (serves && !worker.dropped) {
      worker.state = DeviceState::kReady;
      if (std::exchange(worker.behind, false)) CatchUp(worker);
      NotifyUp(key);
    }
    Apply();
  }
  WorkAll();
  // Commands of a user at whose commands workers ended are held back until then.
  now_ += EndedWorkers::kWindow;
  core_->Tick(now_, &effects_);
  Apply();
  WorkAll();
  // A release at which two workers ended is repeated only for an operator.
  AsOperator([this](const Caller& caller) {
    const CallId reap(++last_call_);
    reaps_.insert(reap);
    core_->Reap(now_, reap, caller, &effects_);
    Apply();
    WorkAll();
  });
  FinishModules();
  if (!calls_.empty()) Fail(absl::StrCat(calls_.size(), " calls were never answered"));
  if (!core_->ListSessions(Admin()).empty()) Fail("sessions are left");
  if (!core_->ListWaiters(Admin(), "").empty()) Fail("waiters are left");
  for (const PoolView& pool : core_->ListPools()) {
    if (pool.out != 0 || pool.holders != 0) Fail("permits are left");
  }
  bool dropped = false;
  for (const DeviceView& device : core_->ListDevices()) {
    // Memory that remains there cannot be returned.
    dropped = dropped || device.state == DeviceState::kDropped;
    if (device.state == DeviceState::kDropped) continue;
    ByteCounts left = device.bytes;
    left.warm = Bytes(0);
    left.daemon = Bytes(0);
    if (left != ByteCounts{}) Fail("bytes are left");
  }
  if (!core_->ListStreams(Admin()).empty() || !pages_.empty()) Fail("streams or pages are left");
  if (!reaps_.empty()) Fail("a reap is never answered");
  if (!core_->ListReservations(Admin()).empty()) Fail("reservations are left");
  if (!core_->ListPlans(Admin()).empty()) Fail("plans are left");
  const bool blocks = !core_->GetUsage(Admin()).rows.empty() || !core_->ListBlocks(Admin()).empty();
  if (blocks && !dropped) Fail("blocks are left");
  if (const absl::Status accounts = core_->CheckInvariants(); !accounts.ok()) Fail(std::string(accounts.message()));
}

}  // namespace berth::core
