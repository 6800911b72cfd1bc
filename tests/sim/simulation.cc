#include "tests/sim/simulation.h"

#include "absl/strings/str_cat.h"

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
    // One that an operator takes out of the node.
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
  // Of some permits are held for so long and no longer.
  if (seed % 3 == 1 && !options.wide) config.pools[1].hold_limit = absl::Milliseconds(1'500);
  // In some each tenant's own, too.
  if (seed % 5 == 2 && !options.wide) {
    config.quotas = {.all = {.permits = 4, .waiters = 5, .sessions = 6, .blocks = 5, .names = 2},
                     .users = {{1001, {.permits = 2, .blocks = 4}}}};
  }
  if (seed % 4 == 3) {
    config.devices[1].cuda_ipc = false;
    config.devices[1].why_no_cuda_ipc = "it cannot";
  }
  // Half of the runs live within limits so small that each is met.
  if (seed % 2 == 0 && !options.wide) {
    config.limits = Limits{.sessions = 20,
                           .channels_per_session = 3,
                           .waiters_per_pool = 6,
                           .blocks = 12,
                           .imports_per_block = 2,
                           .imports_per_channel = 3,
                           .grants_per_block = 2,
                           .answers_per_channel = 20,
                           .queued_deliveries_per_channel = 1,
                           .unacknowledged_fds_per_channel = 2,
                           .unacknowledged_fds_per_tenant = 4,
                           .passes_before_hold = 3,
                           .waiting_allocations_per_device = 1,
                           .passes_before_keep = 2,
                           .longest_keep = absl::Milliseconds(300),
                           .reservations_per_session = 2,
                           .plans_per_session = 1,
                           .modules = {.largest = Bytes(40),
                                       .total = Bytes(100),
                                       .tenant = Bytes(60),
                                       .modules = 5,
                                       .compiles_per_tenant = 2,
                                       .waiters_per_tenant = 1,
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
    workers_[{device.ordinal, Lane::kMain}];
    Worker& context = workers_[{device.ordinal, Lane::kContext}];
    context.state = DeviceState::kIdle;
    context.generation = 0;
  }
  LeaveModules();
}

std::unique_ptr<Core> Simulation::NewCore() {
  return std::make_unique<Core>(
      config_, [this] { return Mix(++last_drawn_) | 1; },
      [this](StreamKey stream) {
        if (!MayRead(stream.channel)) Fail("words are read of a page that is not there");
        return words_[stream];
      },
      [this](ChannelId channel) { return FindWord(channel); });
}

bool Simulation::MayRead(ChannelId channel) const {
  if (pages_.contains(channel) || unmade_pages_.contains(channel)) return true;
  // It is to be made by what has not been carried out yet.
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
  } else {
    Act();
  }
  Carry();
  Check();
}

void Simulation::Act() {
  said_.clear();
  fresh_session_ = SessionId();
  fresh_channel_ = ChannelId();
  if (options_.only_permits && Chance(20)) return UseKept();
  const uint64_t die = Draw(1000);
  if (die < 40) return OpenOrJoin();
  if (die < 410) return Ask();
  if (die < 430) return UseKept();
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
  if (die < 946) return FollowOrder();
  if (die < 953) return Operate();
  if (die < 963) return KeepModules();
  if (die < 978) return RunStreams();
  if (die < 982) return Monitor();
  if (die < 993) return PassTime();
  Look();
}

void Simulation::Carry() {
  if (dead_) return;
  Keep();
  if (stalled_) return;
  NoteExpired(0, effects_.size());
  for (const Effect& effect : effects_) {
    if (effect.number != ++last_effect_) Fail("an effect's number is not the next");
    CarryEffect(effect);
  }
  effects_.clear();
  kept_steps_.clear();
  while (!lost_.empty()) {
    const BlockId block = lost_.front();
    lost_.pop_front();
    core_->BlockReleased(now_, block, absl::OkStatus(), &effects_);
  }
  if (!effects_.empty()) Carry();
}

void Simulation::CarryEffect(const Effect& effect) {
  if (const auto* reply = std::get_if<Reply>(&effect.what)) {
    CarryReply(*reply);
  } else if (const auto* create = std::get_if<CreateBlock>(&effect.what)) {
    Worker& worker = workers_[{create->device, create->lane}];
    if (IsThere(worker)) worker.jobs.push_back({.block = create->block, .create = create->bytes});
  } else if (const auto* release = std::get_if<ReleaseBlock>(&effect.what)) {
    CarryRelease(*release);
  } else if (const auto* deliver = std::get_if<Deliver>(&effect.what)) {
    CarryDeliver(*deliver);
  } else if (const auto* closed = std::get_if<CloseChannel>(&effect.what)) {
    const auto process = processes_.find(closed->channel);
    if (process != processes_.end() && !process->second.hung_up) Fail("a channel is closed that is in use");
  } else if (const auto* made = std::get_if<MakeFencePage>(&effect.what)) {
    unmade_pages_.erase(made->channel);
    if (!pages_.insert(made->channel).second && !resuming_) Fail("a page is made twice");
  } else if (const auto* gone = std::get_if<DropFencePage>(&effect.what)) {
    CarryDropPage(gone->channel);
  } else if (const auto* channel = std::get_if<DropChannel>(&effect.what)) {
    CarryDropChannel(channel->channel);
  } else if (const auto* session = std::get_if<DropSession>(&effect.what)) {
    CarryDropSession(session->session);
  } else if (const auto* order = std::get_if<OrderDevice>(&effect.what)) {
    CarryOrder(*order);
  } else if (const auto* work = std::get_if<ModuleWork>(&effect.what)) {
    CarryModuleWork(*work);
  } else if (const auto* record = std::get_if<LogRecord>(&effect.what)) {
    if (records_lost_ ? record->number <= last_record_ : record->number != last_record_ + 1) {
      Fail("a log record's number is not the next");
    }
    last_record_ = record->number;
    records_lost_ = false;
  } else if (const auto* lease = std::get_if<LeaseRecord>(&effect.what)) {
    NoteLease(*lease);
  }
}

void Simulation::CarryDropPage(ChannelId channel) {
  const bool unmade = unmade_pages_.erase(channel) > 0;
  if (!unmade && !pages_.contains(channel)) return Fail("a page is dropped that is not there");
  SettleKept();
  left_kept_.erase(channel);
  if (const auto process = processes_.find(channel); process != processes_.end()) {
    process->second.kept.reset();
    process->second.in_use = process->second.owes_look = process->second.keeps = false;
  }
  pages_.erase(channel);
  permit_words_.erase(channel);
  const auto theirs = [&](const auto& word) { return word.first.channel == channel; };
  std::erase_if(words_, theirs);
  std::erase_if(queued_, theirs);
  alone_.Forget(channel);
}

void Simulation::CarryDropSession(SessionId session) {
  if (clients_.erase(session) == 0) Fail("a session is dropped twice");
  std::erase_if(permits_, [&](const auto& permit) { return permit.second.first == session; });
  std::erase_if(plans_, [&](const auto& plan) { return plan.second->session == session; });
}

void Simulation::CarryOrder(const OrderDevice& order) {
  const bool both = order.order == DeviceOrder::kReset || order.order == DeviceOrder::kDrop ||
                    order.order == DeviceOrder::kLose;
  const bool context = order.order == DeviceOrder::kStart || order.order == DeviceOrder::kEnd;
  if (order.order == DeviceOrder::kEnable && workers_[{order.device, order.lane}].abandoned) {
    Fail("a device is enabled whose worker is not gone");
  }
  for (const Lane lane : kLanes) {
    if (both || lane == (context ? Lane::kContext : order.lane)) {
      workers_[{order.device, lane}].orders.push_back(order.order);
    }
  }
}

void Simulation::CarryDropChannel(ChannelId channel) {
  const auto found = processes_.find(channel);
  if (found == processes_.end()) return;
  if (const ChannelId now = found->second.replaced_by) {
    ++counts_.rejoined;
    if (processes_.contains(now)) processes_.at(now).mapped.merge(found->second.mapped);
    processes_.erase(found);
    return;
  }
  // Its process lives; then it has to be out of everything.
  const Process& process = found->second;
  if (!process.hung_up) Fail("a channel is dropped whose process lives and holds it");
  if (!process.mapped.empty()) Fail("a channel is dropped whose process may have memory mapped");
  if (!clients_.at(process.session).ended) Fail("a channel is dropped of a session that goes on");
  for (const auto& [permit, held] : permits_) {
    if (held.first == process.session && !held.second.empty())
      Fail("a session is dropped that holds a permit");
  }
  ++counts_.left_alive;
  processes_.erase(found);
}

void Simulation::CarryDeliver(const Deliver& deliver) {
  const auto found = processes_.find(deliver.channel);
  if (found == processes_.end() || found->second.hung_up) {
    // It may have ended since that was decided.
    if (!late_) Fail("a delivery goes to nobody");
    return;
  }
  Process& process = found->second;
  if (resuming_ && deliver.delivery.number <= process.last_delivery) return;
  if (deliver.delivery.number != ++process.last_delivery) Fail("a delivery's number is not the next");
  if (deliver.delivery.what == attach::DeliveryKind::kEnded) {
    if (!clients_.at(process.session).ended) Fail("a session is said to have ended that goes on");
    return;
  }
  // A recall may come late, for a block that is gone.
  if (deliver.delivery.what == attach::DeliveryKind::kRecall) return;
  if (deliver.delivery.what == attach::DeliveryKind::kAskBack) return;
  if (deliver.delivery.what == attach::DeliveryKind::kOverdue) return;
  if (deliver.delivery.what == attach::DeliveryKind::kRevoked) {
    ++counts_.told_revoked;
    if (permits_.contains(PermitId(deliver.delivery.permit)))
      Fail("a permit is said to be revoked that is not");
    return;
  }
  if (deliver.delivery.what == attach::DeliveryKind::kPlanStale) {
    ++counts_.told_stale;
    return;
  }
  if (deliver.delivery.what == attach::DeliveryKind::kHandOver) {
    process.wanted.insert(BlockId(deliver.delivery.block));
    return;
  }
  if (deliver.delivery.what == attach::DeliveryKind::kHandleBlock) {
    // It may be gone already.
    process.mapped.emplace(ImportId(deliver.delivery.import), BlockId(deliver.delivery.block));
    return;
  }
  const bool module = deliver.delivery.what == attach::DeliveryKind::kModule;
  if (module && !deliver.read_only) Fail("a process could write a module that others are given");
  const bool page = deliver.delivery.what == attach::DeliveryKind::kOwnPage ||
                    deliver.delivery.what == attach::DeliveryKind::kForeignPage;
  if (page) CarryPage(process, deliver);
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

void Simulation::CarryPage(Process& process, const Deliver& deliver) {
  if (deliver.delivery.what == attach::DeliveryKind::kOwnPage) {
    if (deliver.read_only) Fail("a process cannot write its own page");
    return;
  }
  if (!deliver.read_only) Fail("a process could write another's page");
  if (!process.pages.insert(ChannelId(deliver.delivery.owner)).second) Fail("a page is sent twice");
}

void Simulation::Check() {
  SettleKept();
  std::erase_if(permits_, [](const auto& permit) { return permit.second.second.empty(); });
  CheckPools();
  CheckDevices();
  if (step_ % options_.check_rows_every == 0) CheckRows();
  if (step_ % options_.check_every != 0) return;
  if (const absl::Status books = core_->CheckBooks(); !books.ok()) Fail(std::string(books.message()));
  CheckPlans();
  CheckQuotas();
  CheckLeases();
  const std::vector<PermitView> out = core_->ListPermits(Admin(), "");
  if (out.size() != permits_.size()) {
    Fail(absl::StrCat(out.size(), " permits are out, ", permits_.size(), " were told of"));
  }
  for (const PermitView& permit : out) {
    const auto told = permits_.find(permit.id);
    if (told == permits_.end() || told->second.second.size() != permit.depth) {
      Fail(absl::StrCat("permit ", permit.id.value(), " is not as deep as told"));
    }
  }
}

void Simulation::NoteExpired(size_t begin, size_t end) {
  // Its record comes last of all that a step does.
  for (size_t i = begin; i < end; ++i) {
    const auto* const lease = std::get_if<LeaseRecord>(&effects_[i].what);
    if (lease == nullptr || lease->kind != LeaseKind::kPermit || lease->end != LeaseEnd::kExpired) continue;
    ++counts_.expired;
    permits_.erase(PermitId(lease->id));
  }
}

void Simulation::NoteLease(const LeaseRecord& lease) {
  const auto key = std::make_pair(lease.kind, lease.id);
  if (lease.end == LeaseEnd::kNone) {
    if (!leases_.insert(key).second) Fail("a lease is said to be granted that is out");
  } else if (leases_.erase(key) == 0 && !(resuming_ && !settling_)) {
    // Until the broker has told what is out, who has not heard of a grant may hear of its end.
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
    for (const Lane lane : kLanes) {
      for (const auto& [block, memory] : workers_[{device.ordinal, lane}].made) made += memory.bytes.count();
    }
    if (made > charged) Fail("the driver has given out more than is charged");
  }
  // Between two looks a limit may have moved twice.
  if (options_.check_every > 8) return;
  auto before = std::exchange(charged_before_, {});
  for (const BudgetView& view : core_->ListBudgets(Admin())) {
    const uint64_t owner = view.layer == Layer::kSession ? view.session.value() : view.tenant.uid;
    const std::array<uint64_t, 3> key = {static_cast<uint64_t>(view.layer), view.device, owner};
    const uint64_t charged = view.bytes.charged().count() - view.bytes.daemon.count();
    charged_before_[key] = charged;
    // Nothing but quarantine charges a tenant past its limit, and that asks nobody.
    if (view.layer == Layer::kTenant && view.bytes.quarantined.count() > 0) continue;
    if (view.limit.has_value() && charged > view.limit->count() && charged > before[key] && !settling_) {
      Fail(absl::StrCat("a ", LayerName(view.layer), " is over its budget"));
    }
  }
}

void Simulation::DeletePublished() {
  const Client client = NewClient();
  const auto session =
      core_->OpenSession(now_, client.secret, client.tenant, "operator", ProcessInfo{.pid = 1});
  if (!session.ok()) return Fail("an operator is refused");
  clients_.emplace(*session, client);
  const auto channel =
      core_->JoinSession(now_, *session, client.secret, client.tenant, ProcessInfo{.pid = 2});
  if (!channel.ok()) return Fail("an operator is refused");
  processes_.emplace(*channel, Process{.session = *session});
  const Caller caller{.credentials = {.session = *session, .channel = *channel, .secret = client.secret},
                      .tenant = client.tenant,
                      .admin = true};
  uint64_t sequence = 0;
  for (const BlockView& block : core_->ListBlocks(Admin())) {
    if (block.name.empty()) continue;
    const CallId call(++last_call_);
    calls_[call] = Call{.channel = *channel, .sequence = ++sequence};
    core_->Unpublish(now_, call, caller, {.sequence = sequence}, {.name = block.name, .tenant = block.tenant},
                     &effects_);
  }
  Carry();
  clients_.at(*session).ended = true;
  core_->LifelineHungUp(now_, *session, &effects_);
  Carry();
  if (processes_.contains(*channel)) Kill(*channel);
  Carry();
}

void Simulation::Finish() {
  // Everything that is under way ends, in some order.
  while (status_.ok() && !(processes_.empty() && clients_.empty())) {
    ++step_;
    const uint64_t before = processes_.size() + clients_.size();
    if (Chance(50)) {
      Work();
    } else {
      EndSomething();
    }
    Carry();
    Check();
    if (processes_.size() + clients_.size() > before) Fail("something comes while everything ends");
  }
  DeletePublished();
  // What was freed while its uses went on is looked at once more.
  now_ += absl::Seconds(1);
  core_->Tick(now_, &effects_);
  Carry();
  // Workers start anew, and release what they could not before.
  workers_fail_ = false;
  for (auto& [key, worker] : workers_) {
    if (worker.abandoned) EndWorker(key, /*stopped=*/true);
    Carry();
    worker.hung = false;
    worker.orders.clear();
    const bool serves = key.second == Lane::kMain || worker.state == DeviceState::kReady;
    if (serves && !worker.dropped) {
      worker.state = DeviceState::kReady;
      if (std::exchange(worker.behind, false)) CatchUp(worker);
      TellUp(key);
    }
    Carry();
    while (status_.ok() && !worker.jobs.empty()) {
      ++step_;
      Work();
      Carry();
      Check();
    }
  }
  FinishModules();
  if (!calls_.empty()) Fail(absl::StrCat(calls_.size(), " calls were never answered"));
  if (!core_->ListSessions(Admin()).empty()) Fail("sessions are left");
  if (!core_->ListWaiters(Admin(), "").empty()) Fail("waiters are left");
  for (const PoolView& pool : core_->ListPools()) {
    if (pool.out != 0 || pool.holders != 0) Fail("permits are left");
  }
  bool dropped = false;
  for (const DeviceView& device : core_->ListDevices()) {
    // What is left there has nowhere to go back to.
    if (device.state == DeviceState::kDropped) {
      dropped = true;
      continue;
    }
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
  if (const absl::Status books = core_->CheckBooks(); !books.ok()) Fail(std::string(books.message()));
}

}  // namespace berth::core
