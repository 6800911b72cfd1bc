#include "daemon/core/testing/core_harness.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace berth::core {

absl::Status Restore(const LedgerRecords& records, Core* core, const ArchiveOrigin& origin) {
  BERTH_RETURN_IF_ERROR(core->Restore(ViewsOf(records), origin));
  return core->CheckInvariants();
}

Config CoreHarness::DefaultConfig() {
  Config config{.node = 7,
                .incarnation = 9,
                .pools = {{.name = "gpu-tests", .cap = 2}, {.name = "wide", .cap = 8}},
                .warm_blocks_per_size = 0};
  for (uint32_t ordinal = 0; ordinal < 2; ++ordinal) {
    config.devices.push_back({.ordinal = ordinal,
                              .uuid = absl::StrCat("DEVICE-", ordinal),
                              .kind = ordinal == 0 ? MemoryKind::kHost : MemoryKind::kCudaVmm,
                              .total = MiB(64),
                              .budget = MiB(16)});
  }
  return config;
}

Config CoreHarness::MeasuringConfig(Bytes context) {
  Config config = DefaultConfig();
  for (DeviceConfig& device : config.devices) {
    device.measure_context = true;
    device.context = context;
  }
  return config;
}

void CoreHarness::MakeCore() {
  core = std::make_unique<Core>(
      config_, [this] { return ++last_id_; }, [this](StreamKey stream) { return fence_values[stream]; },
      [this](ChannelId channel) { return pages.contains(channel) ? &permit_slots[channel] : nullptr; },
      [this](ChannelId channel) { return pages.contains(channel) ? &take_up_words[channel] : nullptr; });
}

CoreHarness::CoreHarness(const Config& config) : config_(config) {
  MakeCore();
  for (const DeviceConfig& device : config.devices) {
    Do([&](Core& core, Effects* effects) { core.WorkerUp(now, device.ordinal, WorkerKind::kMain, effects); });
  }
}

void CoreHarness::Restart(const Config& config) {
  config_ = config;
  ++config_.epoch;
  MakeCore();
  last_effect_ = 0;
  const absl::Status restored = Restore(records, core.get());
  EXPECT_TRUE(restored.ok()) << restored;
  // Lease records of steps that were not persisted never left the broker.
  open_leases.clear();
  for (const LeaseRecord& lease : core->ListLeases()) open_leases[{lease.kind, lease.id}] = lease;
  resuming_ = true;
  for (const DeviceConfig& device : config.devices) {
    Do([&](Core& core, Effects* effects) { core.WorkerUp(now, device.ordinal, WorkerKind::kMain, effects); });
  }
  Do([&](Core& core, Effects* effects) { core.Resume(now, effects); });
  resuming_ = false;
}

void CoreHarness::Keep() {
  RecordBatch changes;
  core->TakeChanges(&changes);
  changes.ApplyTo(&records);
  const LedgerRecords all = core->AllRecords();
  for (const auto& [key, content] : all) {
    const auto found = records.find(key);
    EXPECT_TRUE(found != records.end() && found->second == content)
        << "record " << key.id << " of kind " << key.kind << " (part " << key.part << ") was not written down";
  }
  EXPECT_EQ(records.size(), all.size()) << "a record is gone, and that was not written down";
}

Peer CoreHarness::Open(const Tenant& tenant, bool of_operator) {
  Peer peer{.tenant = tenant};
  peer.secret.bits[0] = static_cast<uint8_t>(++last_id_);
  const absl::StatusOr<SessionId> session =
      core->OpenSession(now, peer.secret, peer.tenant, "test", {.pid = 1, .uid = tenant.uid}, of_operator);
  EXPECT_TRUE(session.ok()) << session.status();
  peer.session = session.value_or(SessionId());
  return JoinTo(peer);
}

Peer CoreHarness::JoinTo(const Peer& peer) {
  Peer joined{.session = peer.session, .secret = peer.secret, .tenant = peer.tenant};
  const absl::StatusOr<ChannelId> channel =
      core->JoinSession(now, peer.session, peer.secret, peer.tenant,
                        {.pid = unseen ? 0 : static_cast<int32_t>(++last_id_), .name = "tester"});
  EXPECT_TRUE(channel.ok()) << channel.status();
  joined.channel = channel.value_or(ChannelId());
  return joined;
}

CallId CoreHarness::Acquire(Peer& peer, const AcquireRequest& request) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Acquire(now, call, peer.caller(), peer.Next(), request, effects);
  });
}

CallId CoreHarness::AcquireGang(Peer& peer, const GangRequest& request) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.AcquireGang(now, call, peer.caller(), peer.Next(), request, effects);
  });
}

CallId CoreHarness::Release(Peer& peer, AcquisitionId acquisition) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Release(now, call, peer.caller(), peer.Next(), acquisition, effects);
  });
}

CallId CoreHarness::Allocate(Peer& peer, const AllocateRequest& request) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Allocate(now, call, peer.caller(), peer.Next(), request, effects);
  });
}

CallId CoreHarness::Allocate(Peer& peer, Bytes bytes, uint32_t device) {
  return Allocate(peer, AllocateRequest{.device = device, .bytes = bytes, .label = "block"});
}

CallId CoreHarness::Publish(Peer& peer, const BlockHandle& handle, const std::string& name,
                            std::vector<ImportId> let_go) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Publish(now, call, peer.caller(), peer.Next(), {.handle = handle, .name = name, .let_go = let_go},
                 effects);
  });
}

CallId CoreHarness::Unpublish(Peer& peer, const std::string& name) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Unpublish(now, call, peer.caller(), peer.Next(), {.name = name}, effects);
  });
}

CallId CoreHarness::ImportNamed(Peer& peer, const std::string& name) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Import(now, call, peer.caller(), peer.Next(), {.name = name}, effects);
  });
}

CallId CoreHarness::Reserve(Peer& peer, const ReserveRequest& request) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Reserve(now, call, peer.caller(), peer.Next(), request, effects);
  });
}

CallId CoreHarness::ReleaseReservation(Peer& peer, ReservationId reservation) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.ReleaseReservation(now, call, peer.caller(), peer.Next(), reservation, effects);
  });
}

CallId CoreHarness::MakePlan(Peer& peer, const PlanRequest& request) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.MakePlan(now, call, peer.caller(), peer.Next(), request, effects);
  });
}

CallId CoreHarness::Replan(Peer& peer, PlanId plan, bool reweigh) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Replan(now, call, peer.caller(), peer.Next(), {.plan = plan, .reweigh = reweigh}, effects);
  });
}

CallId CoreHarness::ReleasePlan(Peer& peer, PlanId plan) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.ReleasePlan(now, call, peer.caller(), peer.Next(), plan, effects);
  });
}

CallId CoreHarness::Free(Peer& peer, const BlockHandle& handle, std::vector<ImportId> let_go) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Free(now, call, peer.caller(), peer.Next(), {.handle = handle, .let_go = let_go}, effects);
  });
}

CallId CoreHarness::Grant(Peer& peer, const BlockHandle& handle, const Grantee& grantee) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Grant(now, call, peer.caller(), peer.Next(), {.handle = handle, .grantee = grantee}, effects);
  });
}

CallId CoreHarness::Import(Peer& peer, const BlockHandle& handle, bool read_only) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Import(now, call, peer.caller(), peer.Next(), {.handle = handle, .read_only = read_only}, effects);
  });
}

CallId CoreHarness::KeepPermits(Peer& peer, bool maps) {
  const CallId call = Ask([&](Core& core, CallId id, Effects* effects) {
    core.KeepPermits(now, id, peer.caller(), peer.Next(), {}, effects);
  });
  if (maps) Acknowledge(peer, deliveries.back().delivery.number);
  return call;
}

CallId CoreHarness::ReleaseIfIdle(Peer& peer, AcquisitionId acquisition) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.ReleaseIfIdle(now, call, peer.caller(), peer.Next(), {.acquisition = acquisition}, effects);
  });
}

CallId CoreHarness::OpenStream(Peer& peer, uint32_t device, bool default_stream) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.OpenStream(now, call, peer.caller(), peer.Next(),
                    {.device = device, .default_stream = default_stream}, effects);
  });
}

CallId CoreHarness::CloseStream(Peer& peer, uint32_t slot) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.CloseStream(now, call, peer.caller(), peer.Next(), {.slot = slot}, effects);
  });
}

CallId CoreHarness::Prepare(Peer& peer, uint32_t slot, std::vector<BlockUse> uses) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.PrepareUse(now, call, peer.caller(), peer.Next(), {.slot = slot, .uses = std::move(uses)}, effects);
  });
}

CallId CoreHarness::Finish(Peer& peer, UseId use, uint64_t value) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.FinishUse(now, call, peer.caller(), peer.Next(), {.use = use, .value = value}, effects);
  });
}

CallId CoreHarness::Abandon(Peer& peer, UseId use) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.AbandonUse(now, call, peer.caller(), peer.Next(), {.use = use}, effects);
  });
}

CallId CoreHarness::ObtainModule(Peer& peer, const ObtainModuleRequest& request) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.ObtainModule(now, call, peer.caller(), peer.Next(), request, effects);
  });
}

CallId CoreHarness::StoreModule(Peer& peer, const StoreModuleRequest& request) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.StoreModule(now, call, peer.caller(), peer.Next(), request, effects);
  });
}

CallId CoreHarness::AbandonModule(Peer& peer, CompileId compile, const std::string& error) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.AbandonModule(now, call, peer.caller(), peer.Next(), {.compile = compile, .error = error}, effects);
  });
}

void CoreHarness::HandOver(const Peer& peer, BlockId block, const std::vector<HandedMark>& marks) {
  Do([&](Core& core, Effects* effects) { core.BlockHandedOver(now, peer.channel, block, marks, effects); });
}

CallId CoreHarness::Forget(const Peer& peer, uint64_t sequence) {
  return Ask([&](Core& core, CallId call, Effects* effects) {
    core.Forget(now, call, peer.caller(), sequence, effects);
  });
}

AcquireResult CoreHarness::MustAcquire(Peer& peer, const AcquireRequest& request) {
  return Get<AcquireResult>(Acquire(peer, request));
}

AllocateResult CoreHarness::MustAllocate(Peer& peer, Bytes bytes, uint32_t device) {
  const CallId call = Allocate(peer, bytes, device);
  WorkAll();
  return Get<AllocateResult>(call);
}

absl::StatusOr<std::vector<BudgetView>> CoreHarness::SetBudget(const SetBudgetRequest& request,
                                                               const Peer* as) {
  if (as == nullptr && !operator_.has_value()) operator_ = Open(/*uid=*/0);
  Caller caller = as == nullptr ? operator_->caller() : as->caller();
  caller.admin = as == nullptr;
  absl::StatusOr<std::vector<BudgetView>> views;
  Do([&](Core& core, Effects* effects) { views = core.SetBudget(now, caller, request, effects); });
  return views;
}

BudgetView CoreHarness::Budget(Layer layer, uint32_t device, const Peer& peer) const {
  for (const BudgetView& view : core->ListBudgets(Admin())) {
    if (view.layer != layer || view.device != device) continue;
    if (layer == Layer::kTenant && view.tenant != peer.tenant) continue;
    if (layer == Layer::kSession && view.session != peer.session) continue;
    return view;
  }
  return {};
}

void CoreHarness::WorkOnce(const absl::Status& status) {
  ASSERT_FALSE(jobs.empty());
  const auto job = jobs.front();
  jobs.pop_front();
  Do([&](Core& core, Effects* effects) {
    if (const auto* create = std::get_if<CreateBlock>(&job)) {
      core.BlockCreated(now, create->block, status, effects, HandleFor(create->block));
    } else {
      core.BlockReleased(now, std::get<ReleaseBlock>(job).block, status, effects);
    }
  });
}

void CoreHarness::WorkAll() {
  while (!jobs.empty()) WorkOnce();
}

void CoreHarness::DropWorker(bool stopped) {
  jobs.clear();
  const DeviceState state = stopped ? DeviceState::kStopped : DeviceState::kRebuilding;
  Do([&](Core& core, Effects* effects) { core.WorkerDown(now, 0, WorkerKind::kMain, state, effects); });
}

void CoreHarness::RaiseWorker() {
  Do([&](Core& core, Effects* effects) { core.WorkerUp(now, 0, WorkerKind::kMain, effects); });
}

void CoreHarness::StopDevice(uint32_t device) {
  Do([&](Core& core, Effects* effects) {
    core.WorkerDown(now, device, WorkerKind::kMain, DeviceState::kStopped, effects);
  });
}

void CoreHarness::LoseMemory(uint32_t device, uint64_t generation) {
  Do([&](Core& core, Effects* effects) {
    core.ReportDevice(now, device, WorkerKind::kMain, {.generation = generation}, effects);
  });
}

IpcHandle CoreHarness::HandleFor(BlockId block) {
  IpcHandle handle;
  handle.bytes[0] = static_cast<std::byte>(block.value());
  return handle;
}

void CoreHarness::Tick() {
  Do([&](Core& core, Effects* effects) { core.Tick(now, effects); });
}

void CoreHarness::Gone(const Peer& peer) {
  Do([&](Core& core, Effects* effects) { core.ProcessGone(now, peer.channel, effects); });
}

void CoreHarness::HangUpChannel(const Peer& peer) {
  Do([&](Core& core, Effects* effects) { core.ChannelHungUp(now, peer.channel, effects); });
}

void CoreHarness::HangUp(const Peer& peer) {
  Do([&](Core& core, Effects* effects) { core.LifelineHungUp(now, peer.session, effects); });
}

void CoreHarness::LetGo(const Peer& peer, ImportId import) {
  Do([&](Core& core, Effects* effects) { core.ImportLetGo(now, peer.channel, import, effects); });
}

absl::StatusOr<ReleaseResult> CoreHarness::GiveBack(const Peer& peer, AcquisitionId acquisition, bool if_idle) {
  absl::StatusOr<ReleaseResult> result;
  Do([&](Core& core, Effects* effects) { result = core.GiveBack(now, peer.channel, acquisition, if_idle, effects); });
  return result;
}

void CoreHarness::Acknowledge(const Peer& peer, uint64_t number) {
  Do([&](Core& core, Effects* effects) { core.DeliveryAcknowledged(now, peer.channel, number, effects); });
}

absl::Status CoreHarness::StatusOf(CallId call) const {
  const auto found = replies.find(call);
  return found == replies.end() ? absl::UnknownError("not answered") : found->second.status();
}

std::string CoreHarness::NamedValue(CallId call, const std::string& name) const {
  const std::optional<ErrorDetails> details = GetErrorDetails(StatusOf(call));
  if (!details.has_value() || !details->metadata.contains(name)) return "none";
  return details->metadata.at(name);
}

void CoreHarness::Apply(const Effects& effects) {
  Keep();
  last_effects.clear();
  for (const Effect& effect : effects) {
    EXPECT_EQ(effect.number, ++last_effect_);
    std::string kind;
    if (const auto* reply = std::get_if<Reply>(&effect.what)) {
      kind = "reply";
      EXPECT_TRUE(replies.emplace(reply->call, reply->response).second) << "answered twice";
    } else if (const auto* create = std::get_if<CreateBlock>(&effect.what)) {
      kind = "create";
      jobs.push_back(*create);
    } else if (const auto* release = std::get_if<ReleaseBlock>(&effect.what)) {
      kind = "release";
      jobs.push_back(*release);
    } else if (const auto* deliver = std::get_if<Deliver>(&effect.what)) {
      kind = deliver->delivery.what == attach::DeliveryKind::kRecall     ? "recall"
             : deliver->delivery.what == attach::DeliveryKind::kHandOver ? "hand-over"
             : deliver->delivery.what == attach::DeliveryKind::kEnded    ? "end"
             : deliver->delivery.what == attach::DeliveryKind::kAskBack  ? "ask-back"
             : deliver->delivery.what == attach::DeliveryKind::kPlanStale ? "plan-stale"
                                                                          : "deliver";
      deliveries.push_back(*deliver);
    } else if (const auto* closed = std::get_if<CloseChannel>(&effect.what)) {
      kind = "close-channel";
      closed_channels.push_back(closed->channel);
    } else if (const auto* made = std::get_if<MakeFencePage>(&effect.what)) {
      kind = "make-page";
      EXPECT_TRUE(pages.insert(made->channel).second || resuming_);
    } else if (const auto* gone = std::get_if<DropFencePage>(&effect.what)) {
      kind = "drop-page";
      EXPECT_EQ(pages.erase(gone->channel), 1u);
    } else if (const auto* channel = std::get_if<DropChannel>(&effect.what)) {
      kind = "drop-channel";
      dropped_channels.push_back(channel->channel);
    } else if (const auto* session = std::get_if<DropSession>(&effect.what)) {
      kind = "drop-session";
      dropped_sessions.push_back(session->session);
    } else if (const auto* command = std::get_if<SendWorkerCommand>(&effect.what)) {
      kind = "order";
      commands.push_back(*command);
    } else if (const auto* work = std::get_if<ModuleWork>(&effect.what)) {
      kind = "module-work";
      module_work.push_back(*work);
    } else if (const auto* record = std::get_if<LogRecord>(&effect.what)) {
      EXPECT_EQ(record->number, log.empty() ? 1u : log.back().number + 1);
      log.push_back(*record);
      continue;
    } else if (const auto* lease = std::get_if<LeaseRecord>(&effect.what)) {
      RecordLease(*lease);
      continue;
    } else if (const auto* look = std::get_if<LookAtProcesses>(&effect.what)) {
      looked_at.clear();
      for (const LookAtProcesses::Process& process : look->processes) looked_at.push_back(process.channel);
      continue;
    } else {
      ++device_changes;
      continue;
    }
    absl::StrAppend(&last_effects, last_effects.empty() ? "" : " ", kind);
  }
  const absl::Status accounts = core->CheckInvariants();
  EXPECT_TRUE(accounts.ok()) << accounts;
  CheckLeases();
}

void CoreHarness::RecordLease(const LeaseRecord& lease) {
  leases.push_back(lease);
  const auto key = std::make_pair(lease.kind, lease.id);
  if (lease.end == LeaseEnd::kNone) {
    EXPECT_TRUE(open_leases.emplace(key, lease).second) << "lease " << lease.id << " was granted twice";
    EXPECT_EQ(lease.granted_at, now);
    return;
  }
  const auto granted = open_leases.find(key);
  ASSERT_NE(granted, open_leases.end()) << "lease " << lease.id << " ended that was not out";
  EXPECT_EQ(lease.granted_at, granted->second.granted_at);
  EXPECT_EQ(lease.held, lease.ended_at - lease.granted_at);
  open_leases.erase(granted);
}

void CoreHarness::CheckLeases() const {
  const std::vector<LeaseRecord> out = core->ListLeases();
  EXPECT_EQ(out.size(), open_leases.size()) << "of the leases that are out each was reported";
  for (const LeaseRecord& lease : out) {
    EXPECT_TRUE(open_leases.contains({lease.kind, lease.id})) << "lease " << lease.id << " was not reported";
  }
}

std::string CoreHarness::Accounts() const {
  std::string accounts;
  for (const SessionView& session : core->ListSessions(Admin())) {
    absl::StrAppend(&accounts, "session ", session.id.value(), " state ", static_cast<int>(session.state),
                    " processes ", session.processes.size(), " units ", session.permit_units, " waiters ",
                    session.waiters, " live ", session.live.count(), "\n");
  }
  for (const PoolView& pool : core->ListPools()) {
    absl::StrAppend(&accounts, "pool ", pool.config.name, " cap ", pool.config.cap, " out ", pool.out,
                    " holders ", pool.holders, " waiters ", pool.waiters, " granted ", pool.granted_total,
                    "\n");
  }
  for (const PermitView& permit : core->ListPermits(Admin(), "")) {
    absl::StrAppend(&accounts, "permit ", permit.id.value(), " depth ", permit.depth, " units ", permit.units,
                    "\n");
  }
  for (const BlockView& block : core->ListBlocks(Admin())) {
    absl::StrAppend(&accounts, "block ", block.handle.block.value(), " state ", static_cast<int>(block.state),
                    " owner ", block.owner.value(), " name ", block.name, " imports ", block.imports.size(),
                    "\n");
  }
  for (const DeviceView& device : core->ListDevices()) {
    absl::StrAppend(&accounts, "device ", device.ordinal, " state ", static_cast<int>(device.state), " budget ",
                    device.budget.count(), " live ", device.bytes.live.count(), " retired ",
                    device.bytes.retired.count(), " quarantined ", device.bytes.quarantined.count(), " warm ",
                    device.bytes.warm.count(), " reserved ", device.bytes.reserved.count(), "\n");
  }
  for (const BudgetView& budget : core->ListBudgets(Admin())) {
    if (budget.bytes == ByteCounts() && budget.peak == Bytes(0)) continue;
    absl::StrAppend(&accounts, LayerName(budget.layer), " budget on ", budget.device, " tenant ",
                    budget.tenant.uid, " session ", budget.session.value(), " charged ",
                    budget.bytes.charged().count(), " peak ", budget.peak.count(), " allocations ",
                    budget.allocations, " busy ", budget.busy.count(), "\n");
  }
  for (const ReservationView& reservation : core->ListReservations(Admin())) {
    absl::StrAppend(&accounts, "reservation ", reservation.id.value());
    for (const auto& claim : reservation.claims) absl::StrAppend(&accounts, " ", claim.left.count());
    absl::StrAppend(&accounts, "\n");
  }
  for (const PlanView& plan : core->ListPlans(Admin())) {
    absl::StrAppend(&accounts, "plan ", plan.layout->id.value(), " revision ", plan.layout->revision, " stale ",
                    static_cast<int>(plan.stale), "\n");
  }
  return absl::StrCat(accounts, "jobs ", jobs.size(), " deliveries ", deliveries.size());
}

}  // namespace berth::core
