#include "daemon/server/broker_process.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/patience.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "common/thread.h"
#include "common/version.h"
#include "daemon/base/ledger_record.h"
#include "daemon/base/namespaces.h"
#include "daemon/core/types/record_kind.h"
#include "daemon/recovery/adoption.h"
#include "daemon/service/transport/grpc_server.h"
#include "daemon/service/transport/single_poller.h"
#include "daemon/supervisor/processes/child_process.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// The longest time for the files of logs and modules, all together, to write their pending data.
constexpr absl::Duration kFlushPatience = absl::Milliseconds(100);

// The pause between two checks of the ledger's file, as a multiple of the time that the last one took.
constexpr int kPauseOfRestores = 10;
constexpr absl::Duration kLeastPause = absl::Milliseconds(1);
// The pause after an attempt to write the ledger's file that failed: the attempt itself may change the folder.
constexpr absl::Duration kPauseOfFailures = absl::Seconds(1);

}  // namespace

absl::Status BrokerProcess::Run(UniqueFd supervisor_socket, Launcher launcher, const Options& options) {
  // Receiving some ten thousand fds takes as long as reading the ledger, so both run in parallel.
  std::optional<ParallelCall<absl::StatusOr<RestoredLedger>>> restored;
  BERTH_ASSIGN_OR_RETURN(Inheritance inheritance,
                         SupervisorFdStore::Receive(std::move(supervisor_socket), [&](const fd_store::Facts& facts,
                                                                                      std::vector<HeldFd> ledgers) {
                           restored.emplace("the ledger", [&options, facts, held = std::move(ledgers)]() mutable {
                             return ReadLedger(facts, std::move(held), options.folder);
                           });
                         }));
  BrokerProcess process(std::move(inheritance), std::move(launcher), restored->get());
  process.fd_store_->SetReplacement({.start = [&process] { return process.launcher_.StartSupervisor(); },
                                     .on_replaced = [&process] { process.OnSupervisorReplaced(); }});
  BERTH_RETURN_IF_ERROR(process.Start(options));
  process.loop_->Run();
  if (process.answers_calls_) process.AwaitAnswers();
  const absl::Time deadline = SteadyNow() + kFlushPatience;
  process.log_->Flush(kFlushPatience / 3);
  process.audit_->Flush(kFlushPatience / 3);
  process.history_->Flush(kFlushPatience / 3);
  process.modules_->Flush(std::max(deadline - SteadyNow(), absl::ZeroDuration()));
  process.launcher_.End();
  // The exit of the process releases the rest. Closing thousands of connections one by one would take longer than the
  // supervisor waits.
  ::_exit(0);
}

BrokerProcess::BrokerProcess(Inheritance inheritance, Launcher launcher, absl::StatusOr<RestoredLedger> restored)
    : launcher_(std::move(launcher)),
      facts_(inheritance.facts),
      restored_ledger_(std::move(restored)),
      fd_store_(std::move(inheritance.fd_store)) {
  for (HeldFd& held : inheritance.held) held_.emplace_hint(held_.end(), held.key, std::move(held.fd));
}

absl::Status BrokerProcess::Start(const Options& options) {
  BERTH_ASSIGN_OR_RETURN(loop_, EventLoop::Create());
  WatchLog();
  BERTH_RETURN_IF_ERROR(TakeOver());
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceRecord> devices, ReadDeviceTable());
  last_good_config_ = std::make_unique<LastGoodConfig>(options, devices, fd_store_.get(), &held_);
  BERTH_ASSIGN_OR_RETURN(const Settings settings, last_good_config_->ReadToStart());
  BERTH_ASSIGN_OR_RETURN(core::Config config, MakeConfig(devices, settings));
  BERTH_RETURN_IF_ERROR(OpenLog(settings));
  BERTH_RETURN_IF_ERROR(OpenAudit(settings, options.state));
  Audit("broker_started", {{"version", kVersion}});
  if (const absl::Status apart = CheckDistinguishesContainers(); !apart.ok()) {
    spdlog::warn("cannot identify every container: {}; refusing processes in the others (UNKNOWN_PEER); run the daemon "
                 "in the host's PID namespace or on Linux 6.11 or later",
                 std::string(apart.message()));
  }
  if (const std::string mistake(last_good_config_->mistake().message()); !mistake.empty()) {
    spdlog::critical("cannot apply the configuration: {}; the last valid one stays in effect", mistake);
    Audit("keep_config", {{"cause", mistake}});
  }
  history_ = std::make_unique<HistoryWriter>(
      HistoryStore::Options{.folder = options.state,
                            .size = settings.history_size, .rows = settings.history_rows,
                            .incarnation = facts_.incarnation,
                            .operators = ::geteuid()});
  fences_ = std::make_unique<FencePageManager>(fd_store_.get());
  BERTH_RETURN_IF_ERROR(StartCore(config, options.folder));
  broker_ = std::make_unique<Broker>(core_.get(), static_cast<EffectSink*>(this), ledger_.get());
  if (!ledger_fault_.ok()) broker_->RefuseRequests(ledger_fault_);
  loop_->SetTimerCallback([this] { broker_->TimerFired(); });
  loop_->SetWakeCallback([this] { OnWake(); });
  block_manager_ = std::make_unique<BlockManager>(loop_.get(), broker_.get(), fd_store_.get(), facts_.epoch);
  monitor_client_ = std::make_unique<DeviceMonitorClient>(loop_.get(), broker_.get(), devices);
  config_ = std::make_unique<ConfigManager>(
      broker_.get(), settings, [this](const auto& complete) { return last_good_config_->Read(complete); },
      [facts = facts_, devices](const Settings& read) {
        return BuildConfig(facts.node, facts.incarnation, devices, read);
      },
      [this](const core::QuotaTable& quotas) {
        connections_->SetQuotas(quotas);
        watches_->SetQuotas(quotas);
      },
      [this] { return ReopenLogs(); });
  LogConfigChanges();
  TakeUpModules(options.state);
  settings_ = std::make_unique<service::SettingsStore>(options.state, broker_.get());
  loop_->Watch(settings_->watch_fd(), EPOLLIN, [this](uint32_t) { settings_->Look(); }).IgnoreError();
  restore_timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const auto restore = [this](uint32_t) {
    uint64_t expirations;
    if (::read(restore_timer_.get(), &expirations, sizeof(expirations)) > 0) RestoreLedgerSoon();
  };
  if (!restore_timer_) return OsError("timerfd_create", errno);
  BERTH_RETURN_IF_ERROR(loop_->Watch(restore_timer_.get(), EPOLLIN, restore).status());
  if (!restore_fault_.empty()) RestoreLedgerSoon();
  BERTH_RETURN_IF_ERROR(StartServers(options, settings));
  seeker_ = std::make_unique<Errand>("another supervisor", [this] { RetrySupervisor(); });
  reloader_ = std::make_unique<Errand>("reloads", [this] {
    for (int asked = reloads_; asked > 0; asked = reloads_.fetch_sub(asked) - asked) Reload();
  });
  BERTH_RETURN_IF_ERROR(TakeUpLeases());
  BERTH_RETURN_IF_ERROR(TakeUpSettings());
  BERTH_RETURN_IF_ERROR(WatchSupervisor());
  BERTH_RETURN_IF_ERROR(WatchLauncher());
  BERTH_RETURN_IF_ERROR(WatchMemory(settings));
  BERTH_RETURN_IF_ERROR(CheckFdsForClients());
  BERTH_RETURN_IF_ERROR(Listen());
  BERTH_RETURN_IF_ERROR(fd_store_->Ready());
  attach_->NotifyResumed();
  if (last_good_config_->being_written()) BeginReload();
  return absl::OkStatus();
}

absl::Status BrokerProcess::TakeOver() {
  const auto take = [this](fd_store::Key key) {
    const auto it = held_.find(key);
    if (it == held_.end()) return UniqueFd();
    UniqueFd fd = std::move(it->second);
    held_.erase(it);
    return fd;
  };
  berthd_listener_ = take(fd_store::KeyOf(fd_store::Listener::kBerthd));
  admin_listener_ = take(fd_store::KeyOf(fd_store::Listener::kAdmin));
  attach_listener_ = take(fd_store::KeyOf(fd_store::Listener::kAttach));
  observer_listener_ = take(fd_store::KeyOf(fd_store::Listener::kObserver));
  admin_attach_listener_ = take(fd_store::KeyOf(fd_store::Listener::kAdminAttach));
  page_fd_ = take(fd_store::KeyOf(fd_store::Kind::kStatePage));
  device_table_ = take(fd_store::KeyOf(fd_store::Kind::kDeviceTable));
  if (!berthd_listener_ || !admin_listener_ || !attach_listener_ || !observer_listener_ ||
      !admin_attach_listener_ || !page_fd_ || !device_table_) {
    return absl::InternalError("the supervisor sent no listening sockets, state page or device table");
  }
  return absl::OkStatus();
}

std::unique_ptr<core::Core> BrokerProcess::MakeCore(const core::Config& config) const {
  FencePageManager* const fence_pages = fences_.get();
  return std::make_unique<core::Core>(
      config, RandomId, [fence_pages](core::StreamKey stream) { return fence_pages->Read(stream); },
      [fence_pages](ChannelId channel) { return fence_pages->FindPermitSlot(channel); },
      [fence_pages](ChannelId channel) { return fence_pages->FindTakeUpWords(channel); });
}

absl::Status BrokerProcess::StartCore(const core::Config& config, const std::string& folder) {
  core_ = MakeCore(config);
  ledger_fds_ = std::make_unique<LedgerFds>(fd_store_.get(), &held_);
  if (facts_.begun == 0) {
    BERTH_RETURN_IF_ERROR(restored_ledger_.status());
    BERTH_RETURN_IF_ERROR(ledger_fds_->Begin(*restored_ledger_));
    ledger_ = std::move(restored_ledger_->ledger);
    return absl::OkStatus();
  }
  ledger_fault_ = RestoreCore(folder);
  // The next process may have the resources that this one lacks; the ledger is not damaged.
  if (ledger_fault_.ok() || absl::IsResourceExhausted(ledger_fault_)) return ledger_fault_;
  spdlog::critical("cannot restore the state: {}", std::string(ledger_fault_.message()));
  ledger_.reset();
  core_ = MakeCore(config);
  return absl::OkStatus();
}

absl::Status BrokerProcess::RestoreCore(const std::string& folder) {
  BERTH_RETURN_IF_ERROR(restored_ledger_.status());
  BERTH_RETURN_IF_ERROR(ledger_fds_->Begin(*restored_ledger_));
  ledger_ = std::move(restored_ledger_->ledger);
  if (ledger_->torn()) spdlog::warn("ledger: ignoring a commit that the previous broker did not complete");
  const RecordViews ledger_records = std::move(restored_ledger_->records);
  absl::Status same = CheckRecorded(facts_, folder);
  if (same.ok()) same = core_->CheckDevices(ledger_records, {.schema = ledger_->schema()});
  if (!same.ok()) {
    if (!HasLeases(ledger_records)) BeginAnew(same);
    return Ledger::Fault(folder, same);
  }
  // The core reads the cached permits of processes and the progress of their streams from the fence pages.
  for (auto it = held_.begin(); it != held_.end();) {
    const bool page = it->first.kind == fd_store::Kind::kFencePage;
    if (page && HasRecord(ledger_records, core::KeyOf(core::RecordKind::kChannel, it->first.id))) {
      BERTH_RETURN_IF_ERROR(fences_->Adopt(ChannelId(it->first.id), std::move(it->second)));
      it = held_.erase(it);
    } else {
      ++it;
    }
  }
  BERTH_ASSIGN_OR_RETURN(const Bytes before, ReadOwnMemory());
  const absl::Status restored = RestoreFromLedger(ledger_records, ledger_.get(), core_.get());
  BERTH_ASSIGN_OR_RETURN(const Bytes after, ReadOwnMemory());
  restored_memory_ = SaturatingSub(after, before);
  if (!restored.ok()) return Ledger::Fault(folder, restored);
  RecordRestore(ledger_->RestoreFile());
  return absl::OkStatus();
}

void BrokerProcess::BeginAnew(const absl::Status& why) {
  spdlog::warn("ledger: {}; it holds no leases, starting a new incarnation", std::string(why.message()));
  if (const absl::Status sent = fd_store_->Reset(); !sent.ok()) {
    spdlog::error("cannot send the reset to the supervisor: {}", std::string(sent.message()));
  }
  ::_exit(0);
}

absl::Status BrokerProcess::TakeUpSettings() {
  // An unreadable ledger also gives the core no settings.
  const absl::Status loaded = settings_->Load(/*begun_anew=*/facts_.begun == 0 || !ledger_fault_.ok());
  if (!loaded.ok() && facts_.begun == 0) return loaded;
  if (!loaded.ok()) spdlog::critical("cannot load the operators' settings: {}", std::string(loaded.message()));
  // An earlier daemon may have failed to write the ledger's settings to the file.
  settings_->Save(absl::ZeroDuration());
  return absl::OkStatus();
}

absl::Status BrokerProcess::TakeUpLeases() {
  if (ledger_fault_.ok()) {
    // Nothing changes the core before NotifyLosses().
    ParallelCall<void> listed("the history's leases", [this] { history_->Resume(core_->ListLeases()); });
    const core::RestoredState restored_state = core_->WhatStands();
    for (const core::RestoredState::Lifeline& lifeline : restored_state.lifelines) {
      audit_->RecordSession(lifeline.session, lifeline.label, lifeline.tenant, /*of_operator=*/false);
    }
    const Adopters adopters = {*broker_, *attach_, *block_manager_, *fences_, *fd_store_,
                               /*after_a_loss=*/facts_.begun >= fd_store::kBegunBeforeALoss,
                               /*pids_are_known=*/facts_.begun != fd_store::kBegunElsewhere};
    BERTH_ASSIGN_OR_RETURN(const Losses losses, AdoptLeases(restored_state, adopters, &held_));
    listed.get();
    NotifyLosses(losses, adopters);
  }
  for (auto& [key, fd] : held_) {
    if (key.kind == fd_store::Kind::kMonitor) BERTH_RETURN_IF_ERROR(monitor_client_->MonitorIsUp(std::move(fd)));
    const bool context = key.kind == fd_store::Kind::kContextWorker;
    if (!context && key.kind != fd_store::Kind::kWorker) continue;
    // Clients may map the worker's memory, which this broker does not know.
    if (context && !ledger_fault_.ok()) continue;
    block_manager_->WorkerIsUp(static_cast<uint32_t>(key.id), context ? WorkerKind::kContext : WorkerKind::kMain,
                               std::move(fd),
                               /*at_work=*/facts_.epoch > 1);
  }
  if (!ledger_fault_.ok()) return absl::OkStatus();
  broker_->Step([](core::Core& core, absl::Time now, core::Effects* effects) { core.Resume(now, effects); });
  for (auto& [key, fd] : std::exchange(held_, {})) LetGo({key, std::move(fd)});
  return absl::OkStatus();
}

void BrokerProcess::EndLeases(const EndNotice& end) {
  spdlog::warn("ending all leases: {}", Describe(end));
  // Reset first: if this process ends before NotifyEnded(), the next broker must not continue leases whose holders know
  // that they ended.
  if (const absl::Status sent = fd_store_->Reset(); !sent.ok()) {
    spdlog::error("cannot send the reset to the supervisor: {}", std::string(sent.message()));
  }
  broker_->Step(
      [](core::Core& core, absl::Time now, core::Effects* effects) { core.ShutDown(now, effects); });
  watches_->ShutDown();
  answers_calls_ = true;
  attach_->NotifyEnded(end);
  for (const auto& [key, fd] : held_) {
    if (key.kind == fd_store::Kind::kChannel) service::AttachServer::NotifyEnded(fd.get(), end);
  }
}

void BrokerProcess::StopDaemon(bool end_leases, uint32_t by_uid) {
  if (end_leases) EndLeases({.reason = EndReason::kStopped, .uid = by_uid});
  fd_store_->SendCommand(/*device=*/0, WorkerKind::kMain, WorkerCommand::kStop, "");
}

void BrokerProcess::Reset(uint32_t by_uid) {
  EndLeases({.reason = EndReason::kReset, .uid = by_uid});
  Stop();
}

void BrokerProcess::LetGo(HeldFd held) {
  switch (held.key.kind) {
    case fd_store::Kind::kLifeline:
    case fd_store::Kind::kChannel:
      attach_->DropOrphan(std::move(held));
      break;
    case fd_store::Kind::kPidfd:
      fd_store_->Drop(held.key);
      break;
    case fd_store::Kind::kFencePage:
      fences_->LetGo(std::move(held));
      break;
    case fd_store::Kind::kBlock:
      block_manager_->ReleaseOrphan(BlockId(held.key.id), std::move(held.fd));
      break;
    case fd_store::Kind::kListener:
    case fd_store::Kind::kStatePage:
    case fd_store::Kind::kDeviceTable:
    case fd_store::Kind::kWorker:
    case fd_store::Kind::kContextWorker:
    case fd_store::Kind::kMonitor:
    case fd_store::Kind::kFolderLock:
    case fd_store::Kind::kWorkerProcess:
    case fd_store::Kind::kContextProcess:
    case fd_store::Kind::kMonitorProcess:
    case fd_store::Kind::kBroker:
    case fd_store::Kind::kConfiguration:
    case fd_store::Kind::kStoreRecord:
    case fd_store::Kind::kFolderClaim:
    case fd_store::Kind::kLedger:
    case fd_store::Kind::kInheritedOutput:
      // Already taken over.
      break;
  }
}

absl::StatusOr<std::vector<DeviceRecord>> BrokerProcess::ReadDeviceTable() const {
  std::vector<DeviceRecord> devices(facts_.device_count);
  const ssize_t size = static_cast<ssize_t>(devices.size() * sizeof(DeviceRecord));
  if (::pread(device_table_.get(), devices.data(), static_cast<size_t>(size), 0) != size) {
    return absl::InternalError("the device table is shorter than the supervisor reported");
  }
  return devices;
}

absl::StatusOr<core::Config> BrokerProcess::MakeConfig(const std::vector<DeviceRecord>& devices,
                                                       const Settings& settings) const {
  BERTH_ASSIGN_OR_RETURN(const StatePage page, StatePage::MapReadOnly(page_fd_.get()));
  core::Config config = BuildConfig(facts_.node, facts_.incarnation, devices, settings);
  config.epoch = facts_.epoch;
  config.limits.prepare_patience = Patient(config.limits.prepare_patience);
  config.limits.unseen_patience = PatientUnless("BERTH_TEST_UNSEEN_MS", config.limits.unseen_patience);
  for (const core::PoolConfig& pool : config.pools) {
    spdlog::info("pool {}: cap {}, cap without a device {}, devices on this node {}", pool.name, pool.cap,
                 pool.no_device_cap == 0 ? pool.cap : pool.no_device_cap, devices.size());
  }
  for (core::DeviceConfig& device : config.devices) {
    device.generation = page->devices[device.ordinal].generation;
    device.context_generation = page->devices[device.ordinal].context_generation;
  }
  return config;
}

void BrokerProcess::TakeUpModules(const std::string& state) {
  absl::StatusOr<std::unique_ptr<ModuleFiles>> files = ModuleFiles::Open(state);
  ModuleFiles::Contents contents;
  if (files.ok()) {
    contents = (*files)->Scan();
    if (contents.corrupt > 0) spdlog::warn("dropped {} corrupt compiled modules", contents.corrupt);
  } else {
    spdlog::warn("cannot open the module files: {}; a restart loses compiled modules",
                 std::string(files.status().message()));
  }
  modules_ = std::make_unique<ModuleStore>(broker_.get(), files.ok() ? *std::move(files) : nullptr,
                                           core::ModuleLimits().largest);
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.RecordCorruptModules(contents.corrupt);
    for (const core::ModuleRecord& record : contents.records) core.RestoreModule(now, record, effects);
  });
}

void BrokerProcess::OnNotice(Notice notice) {
  if (auto* const up = std::get_if<WorkerUp>(&notice)) {
    block_manager_->WorkerIsUp(up->device, up->worker_kind, std::move(up->socket));
  } else if (auto* const monitor = std::get_if<MonitorUp>(&notice)) {
    const absl::Status watched = monitor_client_->MonitorIsUp(std::move(monitor->socket));
    // The supervisor can start another monitor later.
    if (!watched.ok()) {
      Apply(core::SendWorkerCommand{.command = WorkerCommand::kKillMonitor,
                                    .why = absl::StrCat("cannot receive from the monitor: ", watched.message())});
    }
  } else if (auto* const news = std::get_if<WorkerNews>(&notice)) {
    block_manager_->OnWorkerNews(*news);
  } else if (auto* const dropped = std::get_if<DroppedFd>(&notice)) {
    if (dropped->key.kind == fd_store::Kind::kBlock) {
      block_manager_->SupervisorDropped(BlockId(dropped->key.id));
    } else {
      attach_->SupervisorDropped(dropped->key);
    }
  } else if (std::holds_alternative<HandOverRequested>(notice)) {
    // After a failure, the socket next reports that the supervisor is dead.
    fd_store_->HandOver().IgnoreError();
  } else if (auto* const announced = std::get_if<ExecAnnounced>(&notice)) {
    upgrade_->OnExecAnnounced(std::move(announced->process));
  } else if (auto* const failed = std::get_if<ExecFailed>(&notice)) {
    upgrade_->OnExecFailed(failed->why);
  } else if (std::holds_alternative<ReloadRequested>(notice)) {
    BeginReload();
  } else if (auto* const listener = std::get_if<ListenerUp>(&notice)) {
    const absl::Status listens = ListenOn(listener->listener, std::move(listener->socket));
    if (listens.ok()) return;
    // Another broker receives the existing sockets.
    spdlog::critical("cannot listen on a recreated socket: {}; restarting the broker", std::string(listens.message()));
    ::_exit(kExitForWant);
  } else if (std::holds_alternative<FolderChanged>(notice)) {
    RestoreLedgerSoon();
    settings_->Look();
  } else {
    Stop();
  }
}

void BrokerProcess::RecordRestore(const absl::Status& restored) {
  if (!restored.ok()) next_restore_ = SteadyNow() + kPauseOfFailures;
  const std::string fault(restored.message());
  const std::string earlier = std::exchange(restore_fault_, fault);
  if (fault == earlier) return;
  if (fault.empty()) {
    spdlog::info("the ledger's file is in the run folder again; a later daemon can resume the leases");
  } else {
    spdlog::error("cannot restore the ledger's file in the run folder: {}; leases continue, but a later daemon cannot "
                  "resume them; retrying every second",
                  fault);
  }
}

void BrokerProcess::RestoreLedger() {
  const absl::StatusOr<std::string> damage = broker_->RestoreLedger();
  RecordRestore(damage.status());
  if (damage.ok() && !damage->empty()) {
    spdlog::error("the ledger's file was changed by another process: {}; all leases continue in a new file", *damage);
  }
}

void BrokerProcess::RestoreLedgerSoon() {
  const absl::Time begin = SteadyNow();
  if (begin >= next_restore_) {
    RestoreLedger();
    const absl::Time end = SteadyNow();
    next_restore_ = std::max(next_restore_, end + kPauseOfRestores * (end - begin));
    if (restore_fault_.empty()) return;
  }
  const absl::Duration left = std::max(next_restore_ - SteadyNow(), kLeastPause);
  const itimerspec spec = {.it_interval = {}, .it_value = absl::ToTimespec(left)};
  ::timerfd_settime(restore_timer_.get(), 0, &spec, nullptr);
}

void BrokerProcess::Stop() {
  // The change may come before the supervisor has noticed it.
  RestoreLedger();
  if (ledger_fault_.ok()) {
    const core::OutCounts out = broker_->Read([](const core::Core& core) { return core.CountOut(); });
    spdlog::info("stopping: {} permit units and {} blocks ({} bytes) of {} sessions are out; {} requests wait",
                 out.units, out.blocks, out.bytes.count(), out.sessions, out.waiters);
  } else {
    spdlog::warn("stopping: the leases that are out are unknown: {}", std::string(ledger_fault_.message()));
  }
  stopping_ = true;
  loop_->Stop();
}

void BrokerProcess::Apply(const core::CreateBlock& effect) { block_manager_->Create(effect); }

void BrokerProcess::Apply(const core::ReleaseBlock& effect) { block_manager_->Release(effect); }

void BrokerProcess::Apply(const core::MakeFencePage& effect) { fences_->Make(effect.channel); }

void BrokerProcess::Apply(const core::DropFencePage& effect) { fences_->Drop(effect.channel); }

void BrokerProcess::DeliverPage(const core::Deliver& effect) {
  const bool own = effect.delivery.what == attach::DeliveryKind::kOwnPage;
  const absl::StatusOr<UniqueFd> page =
      own ? fences_->OpenOwn(effect.channel) : fences_->Open(ChannelId(effect.delivery.owner), /*read_only=*/true);
  // A delivery without an fd reports a lost page, and the receiver waits for none of the page's fence values.
  if (!own && !page.ok() && !absl::IsNotFound(page.status())) {
    spdlog::error("no fence page for channel {}, disconnecting: {}", effect.channel.value(), page.status().ToString());
    return attach_->HangUp(effect.channel);
  }
  attach_->Deliver(effect.channel, effect.delivery, page.ok() ? page->get() : -1);
}

void BrokerProcess::DeliverModule(const core::Deliver& effect) {
  const absl::StatusOr<UniqueFd> fd = effect.delivery.what == attach::DeliveryKind::kModule
                                          ? modules_->OpenModule(core::ModuleId(effect.delivery.block))
                                          : modules_->OpenPlace(core::CompileId(effect.delivery.block));
  // A delivery without an fd reports a lost module or file.
  attach_->Deliver(effect.channel, effect.delivery, fd.ok() ? fd->get() : -1);
}

void BrokerProcess::Apply(const core::Deliver& effect) {
  if (effect.delivery.what == attach::DeliveryKind::kRevoked &&
      std::exchange(last_revoked_, effect.delivery.permit) != effect.delivery.permit) {
    Audit("revoke", {{"permit", std::to_string(effect.delivery.permit)}});
  }
  switch (effect.delivery.what) {
    case attach::DeliveryKind::kRecall:
    case attach::DeliveryKind::kHandOver:
    case attach::DeliveryKind::kEnded:
    case attach::DeliveryKind::kAskBack:
    case attach::DeliveryKind::kHandleBlock:
    case attach::DeliveryKind::kOverdue:
    case attach::DeliveryKind::kRevoked:
    case attach::DeliveryKind::kPlanStale:
      attach_->Deliver(effect.channel, effect.delivery, -1);
      return;
    case attach::DeliveryKind::kOwnPage:
    case attach::DeliveryKind::kForeignPage:
      DeliverPage(effect);
      return;
    case attach::DeliveryKind::kModule:
    case attach::DeliveryKind::kModulePlace:
      DeliverModule(effect);
      return;
    case attach::DeliveryKind::kBlock:
      break;
  }
  const absl::StatusOr<int> fd = block_manager_->Find(BlockId(effect.delivery.block));
  const absl::StatusOr<UniqueFd> read_only =
      fd.ok() && effect.read_only ? ReopenReadOnly(*fd) : absl::StatusOr<UniqueFd>(UniqueFd());
  if (fd.ok() && read_only.ok()) {
    attach_->Deliver(effect.channel, effect.delivery, effect.read_only ? read_only->get() : *fd);
    return;
  }
  // The process has been granted the block but cannot receive the fd, so its side channel is unusable and is hung up.
  spdlog::error("cannot deliver block {}: {}; disconnecting its process", effect.delivery.block,
                std::string((fd.ok() ? read_only.status() : fd.status()).message()));
  attach_->HangUp(effect.channel);
}

void BrokerProcess::Apply(const core::CloseChannel& effect) { attach_->CloseChannel(effect.channel); }

void BrokerProcess::Apply(const core::DropChannel& effect) {
  attach_->DropChannel(effect.channel);
  audit_->EndProcess(effect.channel);
}

void BrokerProcess::Apply(const core::DropSession& effect) {
  attach_->DropSession(effect.session);
  audit_->EndSession(effect.session);
}

void BrokerProcess::Apply(const core::SendWorkerCommand& effect) {
  if (effect.command == WorkerCommand::kKill || effect.command == WorkerCommand::kKillMonitor)
    spdlog::error("device {}: ending the {}: {}", effect.device,
                  effect.command == WorkerCommand::kKill ? "worker" : "monitor", effect.why);
  Audit("order_device", {{"device", std::to_string(effect.device)},
                         {"order", std::to_string(static_cast<int>(effect.command))},
                         {"cause", effect.why}});
  fd_store_->SendCommand(effect.device, effect.worker_kind, effect.command, effect.why);
}

void BrokerProcess::Audit(const char* what, std::vector<service::AuditFact> facts) {
  audit_->Append({.what = what, .facts = std::move(facts)});
}

void BrokerProcess::Apply(const core::DevicesChanged&) { watches_->Changed(); }
void BrokerProcess::Apply(const core::LogRecord& effect) { log_->Append(effect); }
void BrokerProcess::Apply(const core::LeaseRecord& effect) { history_->Append(effect); }
void BrokerProcess::Apply(const core::ModuleWork& effect) { modules_->Apply(effect); }
void BrokerProcess::ArmTimer(absl::Time when) { loop_->ArmTimer(when); }
void BrokerProcess::Wake() { loop_->Wake(); }

}  // namespace berth
