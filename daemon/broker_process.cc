#include "daemon/broker_process.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/fd_passing.h"
#include "common/memfd.h"
#include "common/row.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "common/version.h"
#include "daemon/adoption.h"
#include "daemon/core/row_kind.h"
#include "daemon/order_wire.h"
#include "daemon/vault/child_process.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// The answers to calls under way get this long to leave when the daemon stops; the vault gives the whole broker 500 ms.
constexpr absl::Duration kStopGrace = absl::Milliseconds(350);
constexpr absl::Duration kStopPause = absl::Milliseconds(1);
// How long a broker without a vault pauses before it has another one started that may find what the last did not.
constexpr absl::Duration kFirstSeekPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestSeekPause = absl::Seconds(2);
// And the files of logs and modules this long, all together, to take what waits for them.
constexpr absl::Duration kFlushPatience = absl::Milliseconds(100);

}  // namespace

absl::Status BrokerProcess::Run(UniqueFd vault_socket, const Folders& folders, Starter starter,
                                const BrokerOptions& options) {
  // Some ten thousand fds take as long to come as the ledger to be read.
  std::future<absl::StatusOr<KeptLedger>> kept;
  BERTH_ASSIGN_OR_RETURN(Inheritance inheritance,
                         Custody::Receive(std::move(vault_socket), [&](const custody::Facts& facts) {
                           kept = std::async(std::launch::async, ReadKeptLedger, facts, folders.sockets);
                         }));
  BrokerProcess process(std::move(inheritance), std::move(starter), kept.get());
  process.custody_->SetSuccession({.start = [&process] { return process.starter_.StartVault(); },
                                   .on_replaced = [&process] { process.OnVaultReplaced(); }});
  BERTH_RETURN_IF_ERROR(process.Start(folders, options));
  process.loop_->Run();
  process.AwaitAnswers();
  const absl::Time deadline = SteadyNow() + kFlushPatience;
  process.log_->Flush(kFlushPatience / 3);
  process.audit_->Flush(kFlushPatience / 3);
  process.history_->Flush(kFlushPatience / 3);
  process.modules_->Flush(std::max(deadline - SteadyNow(), absl::ZeroDuration()));
  process.starter_.End();
  // The rest goes with the process: to take thousands of connections apart one by one takes longer than the vault
  // waits.
  ::_exit(0);
}

BrokerProcess::BrokerProcess(Inheritance inheritance, Starter starter, absl::StatusOr<KeptLedger> kept)
    : starter_(std::move(starter)),
      facts_(inheritance.facts),
      kept_(std::move(kept)),
      custody_(std::move(inheritance.custody)) {
  for (HeldFd& held : inheritance.held) held_.emplace_hint(held_.end(), held.key, std::move(held.fd));
}

absl::Status BrokerProcess::Start(const Folders& folders, const BrokerOptions& options) {
  BERTH_ASSIGN_OR_RETURN(loop_, EventLoop::Create());
  kept_config_ = std::make_unique<KeptConfig>(options, custody_.get(), &held_);
  BERTH_ASSIGN_OR_RETURN(const Settings settings, kept_config_->ReadToStart());
  BERTH_RETURN_IF_ERROR(TakeOver());
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceRecord> devices, ReadDeviceTable());
  BERTH_ASSIGN_OR_RETURN(core::Config config, MakeConfig(devices, settings));
  BERTH_RETURN_IF_ERROR(OpenLog(settings));
  audit_ = std::make_unique<service::AuditLog>(
      service::AuditLog::Options{.folder = settings.audit_folder.value_or(folders.state),
                                 .size = settings.audit_size.value_or(service::kAuditSize),
                                 .incarnation = facts_.incarnation,
                                 .epoch = facts_.epoch});
  Audit("broker_started", {{"version", kVersion}});
  if (const std::string mistake(kept_config_->mistake().message()); !mistake.empty()) {
    spdlog::critical("the configuration stays as it was before this mistake: {}", mistake);
    Audit("keep_config", {{"cause", mistake}});
  }
  history_ = std::make_unique<HistoryKeeper>(
      HistoryStore::Options{.folder = folders.state,
                            .size = settings.history_size.value_or(HistoryKeeper::kSize),
                            .rows = settings.history_rows.value_or(HistoryKeeper::kRows),
                            .incarnation = facts_.incarnation});
  fences_ = std::make_unique<FenceKeeper>(custody_.get());
  BERTH_RETURN_IF_ERROR(StartCore(config, folders.sockets));
  broker_ = std::make_unique<Broker>(core_.get(), static_cast<EffectSink*>(this), ledger_.get());
  if (!ledger_fault_.ok()) broker_->RefuseRequests(ledger_fault_);
  loop_->SetTimerCallback([this] { broker_->TimerFired(); });
  loop_->SetWakeCallback([this] { broker_->CarryOn(); });
  keeper_ = std::make_unique<BlockKeeper>(loop_.get(), broker_.get(), custody_.get(), facts_.epoch);
  desk_ = std::make_unique<InventoryDesk>(loop_.get(), broker_.get(), devices);
  config_ = std::make_unique<ConfigDesk>(
      broker_.get(), settings, [this] { return kept_config_->Read(); },
      [facts = facts_, devices](const Settings& read) {
        return MakeCoreConfig(facts.node, facts.incarnation, devices, read);
      },
      [this](const core::QuotaTable& quotas) {
        connections_->SetQuotas(quotas);
        watches_->SetQuotas(quotas);
      });
  TakeUpModules(folders.state);
  BERTH_RETURN_IF_ERROR(StartFronts(folders.sockets, settings));
  BERTH_RETURN_IF_ERROR(TakeUpLeases());
  BERTH_RETURN_IF_ERROR(WatchVault());
  BERTH_RETURN_IF_ERROR(WatchStarter());
  BERTH_RETURN_IF_ERROR(WatchMemory(settings));
  BERTH_RETURN_IF_ERROR(Listen());
  BERTH_RETURN_IF_ERROR(custody_->Ready());
  attach_->TellResumed();
  return absl::OkStatus();
}

absl::Status BrokerProcess::OpenLog(const Settings& settings) {
  absl::StatusOr<std::unique_ptr<service::AllocationLog>> log =
      service::AllocationLog::Open(settings.log_file, facts_.incarnation);
  if (!log.ok()) {
    // Leases that are out go on without it.
    if (facts_.begun == 0) return log.status();
    spdlog::critical("what happens to memory is not written down: {}", std::string(log.status().message()));
    log = service::AllocationLog::WithoutItsFile(facts_.incarnation);
  }
  log_ = *std::move(log);
  return absl::OkStatus();
}

absl::Status BrokerProcess::TakeOver() {
  const auto take = [this](custody::Key key) {
    const auto it = held_.find(key);
    if (it == held_.end()) return UniqueFd();
    UniqueFd fd = std::move(it->second);
    held_.erase(it);
    return fd;
  };
  berthd_listener_ = take(custody::KeyOf(custody::Listener::kBerthd));
  admin_listener_ = take(custody::KeyOf(custody::Listener::kAdmin));
  attach_listener_ = take(custody::KeyOf(custody::Listener::kAttach));
  observer_listener_ = take(custody::KeyOf(custody::Listener::kObserver));
  admin_attach_listener_ = take(custody::KeyOf(custody::Listener::kAdminAttach));
  page_fd_ = take(custody::KeyOf(custody::Kind::kStatePage));
  device_table_ = take(custody::KeyOf(custody::Kind::kDeviceTable));
  if (!berthd_listener_ || !admin_listener_ || !attach_listener_ || !observer_listener_ ||
      !admin_attach_listener_ || !page_fd_ || !device_table_) {
    return absl::InternalError("the vault gave no listening sockets, state page or device table");
  }
  return absl::OkStatus();
}

std::unique_ptr<core::Core> BrokerProcess::MakeCore(const core::Config& config) const {
  FenceKeeper* const keeper = fences_.get();
  return std::make_unique<core::Core>(
      config, RandomId, [keeper](core::StreamKey stream) { return keeper->Read(stream); },
      [keeper](ChannelId channel) { return keeper->FindPermitWord(channel); });
}

absl::Status BrokerProcess::StartCore(const core::Config& config, const std::string& folder) {
  core_ = MakeCore(config);
  if (facts_.begun == 0) {
    BERTH_RETURN_IF_ERROR(kept_.status());
    ledger_ = std::move(kept_->ledger);
    return absl::OkStatus();
  }
  ledger_fault_ = RestoreCore(folder);
  // What this process lacks the next one may have; the ledger is none the worse.
  if (ledger_fault_.ok() || absl::IsResourceExhausted(ledger_fault_)) return ledger_fault_;
  spdlog::critical("{}", std::string(ledger_fault_.message()));
  ledger_.reset();
  core_ = MakeCore(config);
  return absl::OkStatus();
}

absl::Status BrokerProcess::RestoreCore(const std::string& folder) {
  BERTH_RETURN_IF_ERROR(kept_.status());
  ledger_ = std::move(kept_->ledger);
  if (ledger_->torn()) spdlog::warn("ledger: a commit was under way when the last broker died; it never was");
  const RowViews rows = std::move(kept_->rows);
  // What processes keep, and how far their streams are, the core reads in their pages.
  for (auto it = held_.begin(); it != held_.end();) {
    const bool page = it->first.kind == custody::Kind::kFencePage;
    if (page && HasRow(rows, core::KeyOf(core::RowKind::kChannel, it->first.id))) {
      fences_->Adopt(ChannelId(it->first.id), std::move(it->second));
      it = held_.erase(it);
    } else {
      ++it;
    }
  }
  const absl::Status restored = RestoreKept(rows, ledger_.get(), core_.get());
  return restored.ok() ? restored : Ledger::Fault(folder, restored);
}

absl::Status BrokerProcess::TakeUpLeases() {
  if (ledger_fault_.ok()) {
    // Nothing changes the core until the losses are told.
    std::future<void> listed = std::async(std::launch::async, [this] { history_->Resume(core_->ListLeases()); });
    const core::Standing standing = core_->WhatStands();
    for (const core::Standing::Lifeline& lifeline : standing.lifelines) {
      audit_->NoteSession(lifeline.session, lifeline.label);
    }
    const bool after_a_loss = facts_.begun == custody::kBegunBeforeALoss;
    const Adopters adopters = {*broker_, *attach_, *keeper_, *fences_, *custody_, after_a_loss};
    BERTH_ASSIGN_OR_RETURN(const Losses losses, AdoptLeases(standing, adopters, &held_));
    listed.get();
    TellLosses(losses, adopters);
  }
  for (auto& [key, fd] : held_) {
    if (key.kind == custody::Kind::kMonitor) BERTH_RETURN_IF_ERROR(desk_->MonitorIsUp(std::move(fd)));
    const bool context = key.kind == custody::Kind::kContextWorker;
    if (!context && key.kind != custody::Kind::kWorker) continue;
    // What it keeps may be mapped, and nobody here knows of it.
    if (context && !ledger_fault_.ok()) continue;
    keeper_->WorkerIsUp(static_cast<uint32_t>(key.id), context ? Lane::kContext : Lane::kMain, std::move(fd),
                        /*at_work=*/facts_.epoch > 1);
  }
  if (!ledger_fault_.ok()) return absl::OkStatus();
  broker_->Step([](core::Core& core, absl::Time now, core::Effects* effects) { core.Resume(now, effects); });
  for (auto& [key, fd] : std::exchange(held_, {})) LetGo({key, std::move(fd)});
  return absl::OkStatus();
}

void BrokerProcess::Reset() {
  if (const absl::Status sent = custody_->Reset(); !sent.ok()) {
    spdlog::error("reset: {}", std::string(sent.message()));
  }
  Stop();
}

void BrokerProcess::LetGo(HeldFd held) {
  switch (held.key.kind) {
    case custody::Kind::kLifeline:
    case custody::Kind::kChannel:
      attach_->DropOrphan(std::move(held));
      break;
    case custody::Kind::kPidfd:
      custody_->Drop(held.key);
      break;
    case custody::Kind::kFencePage:
      fences_->LetGo(std::move(held));
      break;
    case custody::Kind::kBlock:
      keeper_->ReleaseOrphan(BlockId(held.key.id), std::move(held.fd));
      break;
    case custody::Kind::kListener:
    case custody::Kind::kStatePage:
    case custody::Kind::kDeviceTable:
    case custody::Kind::kWorker:
    case custody::Kind::kContextWorker:
    case custody::Kind::kMonitor:
    case custody::Kind::kFolderLock:
    case custody::Kind::kWorkerProcess:
    case custody::Kind::kContextProcess:
    case custody::Kind::kMonitorProcess:
    case custody::Kind::kBroker:
    case custody::Kind::kConfiguration:
    case custody::Kind::kStoreRecord:
      // Taken up.
      break;
  }
}

absl::StatusOr<std::vector<DeviceRecord>> BrokerProcess::ReadDeviceTable() const {
  std::vector<DeviceRecord> devices(facts_.device_count);
  const ssize_t size = static_cast<ssize_t>(devices.size() * sizeof(DeviceRecord));
  if (::pread(device_table_.get(), devices.data(), static_cast<size_t>(size), 0) != size) {
    return absl::InternalError("the device table is shorter than the vault says");
  }
  return devices;
}

absl::StatusOr<core::Config> BrokerProcess::MakeConfig(const std::vector<DeviceRecord>& devices,
                                                       const Settings& settings) const {
  BERTH_ASSIGN_OR_RETURN(const StatePage page, StatePage::MapReadOnly(page_fd_.get()));
  core::Config config = MakeCoreConfig(facts_.node, facts_.incarnation, devices, settings);
  config.epoch = facts_.epoch;
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
    if (contents.corrupt > 0) spdlog::warn("{} compiled modules were corrupt, and are dropped", contents.corrupt);
  } else {
    spdlog::warn("compiled modules are not kept over a restart: {}", std::string(files.status().message()));
  }
  modules_ = std::make_unique<ModuleKeeper>(broker_.get(), files.ok() ? *std::move(files) : nullptr,
                                            core::ModuleLimits().largest);
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.NoteCorruptModules(contents.corrupt);
    for (const core::ModuleRecord& record : contents.records) core.RestoreModule(now, record, effects);
  });
}

absl::Status BrokerProcess::WatchVault() {
  loop_->Unwatch(vault_watch_);
  // Edge-triggered, so that a socket with room to spare says so once.
  BERTH_ASSIGN_OR_RETURN(
      vault_watch_,
      loop_->Watch(custody_->fd(), EPOLLIN | EPOLLOUT | EPOLLET, [this](uint32_t) { OnVaultEvent(); }));
  return absl::OkStatus();
}

absl::Status BrokerProcess::WatchStarter() {
  return loop_
      ->Watch(starter_.fd(), EPOLLRDHUP,
              [this](uint32_t) {
                if (stopping_) return;
                spdlog::critical("the starter of vaults has ended: another broker is to have another one");
                ::_exit(1);
              })
      .status();
}

void BrokerProcess::OnVaultReplaced() {
  spdlog::warn("the vault was gone: another one has what it had");
  // Start() has not come to it yet.
  if (vault_watch_ == 0) return;
  const absl::Status watched = WatchVault();
  if (watched.ok()) return;
  // Nor would its end be, which nobody would follow. It is there by now, and starts another broker.
  spdlog::critical("the vault is not heard: {}", std::string(watched.message()));
  ::_exit(kExitForWant);
}

void BrokerProcess::OnVaultEvent() {
  custody_->Flush();
  while (true) {
    absl::StatusOr<Notice> notice = custody_->ReadNotice();
    if (notice.ok()) {
      OnNotice(*std::move(notice));
      continue;
    }
    if (IsWouldBlock(notice.status())) return;
    if (IsEndOfStream(notice.status()) && stopping_) return;
    if (IsEndOfStream(notice.status())) {
      const absl::Status succeeded = custody_->Succeed();
      if (succeeded.ok()) continue;
      spdlog::critical("vault: {}; another one is tried", std::string(succeeded.message()));
      return SeekVault();
    }
    // Nobody else would start a broker again or say that a worker died: better to end than to serve half.
    spdlog::critical("vault: {}", std::string(notice.status().message()));
    _exit(1);
  }
}

void BrokerProcess::SeekVault() {
  if (seeking_.exchange(true)) return;
  if (seeker_.joinable()) seeker_.join();
  seeker_ = std::thread([this] {
    // One that is gone by the time that this ends is followed, too.
    do {
      absl::Duration pause = kFirstSeekPause;
      do {
        absl::SleepFor(pause);
        pause = std::min(2 * pause, kLongestSeekPause);
      } while (!stopping_ && !custody_->Succeed().ok());
      seeking_ = false;
    } while (!stopping_ && !custody_->Succeed().ok() && !seeking_.exchange(true));
  });
}

void BrokerProcess::OnNotice(Notice notice) {
  if (auto* const up = std::get_if<WorkerUp>(&notice)) {
    keeper_->WorkerIsUp(up->device, up->lane, std::move(up->socket));
  } else if (auto* const monitor = std::get_if<MonitorUp>(&notice)) {
    const absl::Status heard = desk_->MonitorIsUp(std::move(monitor->socket));
    // Another one may be, later.
    if (!heard.ok()) {
      Carry(core::OrderDevice{.order = core::DeviceOrder::kKillMonitor,
                              .why = absl::StrCat("the monitor is not heard: ", heard.message())});
    }
  } else if (auto* const news = std::get_if<WorkerNews>(&notice)) {
    keeper_->OnWorkerNews(*news);
  } else if (auto* const dropped = std::get_if<DroppedFd>(&notice)) {
    if (dropped->key.kind == custody::Kind::kBlock) {
      keeper_->VaultDropped(BlockId(dropped->key.id));
    } else {
      attach_->VaultDropped(dropped->key);
    }
  } else if (std::holds_alternative<HandOverRequested>(notice)) {
    // If that fails the socket says next that the vault is gone.
    custody_->HandOver().IgnoreError();
  } else if (std::holds_alternative<ReloadRequested>(notice)) {
    BeginReload();
  } else {
    Stop();
  }
}

void BrokerProcess::BeginReload() {
  // The thread that is at it looks once more.
  if (reloads_.fetch_add(1) > 0) return;
  if (reloader_.joinable()) reloader_.join();
  reloader_ = std::thread([this] {
    for (int asked = reloads_; asked > 0; asked = reloads_.fetch_sub(asked) - asked) Reload();
  });
}

void BrokerProcess::Reload() {
  const absl::StatusOr<std::vector<service::ConfigChange>> changes = config_->Reload();
  service::AuditRecord record = {.what = "reload", .outcome = changes.status()};
  if (!changes.ok()) spdlog::error("{}", std::string(changes.status().message()));
  for (const service::ConfigChange& change : changes.value_or(std::vector<service::ConfigChange>())) {
    const std::string text = absl::StrCat(change.key, ": ", change.from, " -> ", change.to);
    spdlog::info("configuration: {}{}", text, change.why_not.empty() ? "" : " (not now: " + change.why_not + ")");
    if (change.why_not.empty()) record.facts.emplace_back("change", text);
  }
  audit_->Append(std::move(record));
}

void BrokerProcess::AwaitAnswers() const {
  const absl::Time deadline = EventLoop::SteadyNow() + kStopGrace;
  while ((broker_->open_calls() > 0 || watches_->open() > 0) && EventLoop::SteadyNow() < deadline) {
    broker_->CarryOn();
    absl::SleepFor(kStopPause);
  }
  if (broker_->open_calls() + watches_->open() > 0) {
    spdlog::warn("stopping: {} calls and {} watches are not answered in {} ms", broker_->open_calls(), watches_->open(),
                 absl::ToInt64Milliseconds(kStopGrace));
  }
  // What was answered in its handler leaves when that returns.
  absl::SleepFor(kStopPause);
}

void BrokerProcess::Stop() {
  stopping_ = true;
  broker_->Step(
      [](core::Core& core, absl::Time now, core::Effects* effects) { core.ShutDown(now, effects); });
  watches_->ShutDown();
  loop_->Stop();
}

void BrokerProcess::Carry(const core::CreateBlock& effect) { keeper_->Create(effect); }

void BrokerProcess::Carry(const core::ReleaseBlock& effect) { keeper_->Release(effect); }

void BrokerProcess::Carry(const core::MakeFencePage& effect) { fences_->Make(effect.channel); }

void BrokerProcess::Carry(const core::DropFencePage& effect) { fences_->Drop(effect.channel); }

void BrokerProcess::DeliverPage(const core::Deliver& effect) {
  const bool own = effect.delivery.what == attach::DeliveryKind::kOwnPage;
  const absl::StatusOr<UniqueFd> page =
      own ? fences_->OpenOwn(effect.channel) : fences_->Open(ChannelId(effect.delivery.owner), /*read_only=*/true);
  // A page that is gone is told by a delivery without one.
  attach_->Deliver(effect.channel, effect.delivery, page.ok() ? page->get() : -1);
}

void BrokerProcess::DeliverModule(const core::Deliver& effect) {
  const absl::StatusOr<UniqueFd> fd = effect.delivery.what == attach::DeliveryKind::kModule
                                          ? modules_->OpenModule(core::ModuleId(effect.delivery.block))
                                          : modules_->OpenPlace(core::CompileId(effect.delivery.block));
  // One that is gone is told by a delivery without it.
  attach_->Deliver(effect.channel, effect.delivery, fd.ok() ? fd->get() : -1);
}

void BrokerProcess::Carry(const core::Deliver& effect) {
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
  const absl::StatusOr<int> fd = keeper_->Find(BlockId(effect.delivery.block));
  const absl::StatusOr<UniqueFd> read_only =
      fd.ok() && effect.read_only ? ReopenReadOnly(*fd) : absl::StatusOr<UniqueFd>(UniqueFd());
  if (fd.ok() && read_only.ok()) {
    attach_->Deliver(effect.channel, effect.delivery, effect.read_only ? read_only->get() : *fd);
    return;
  }
  // The process was told that it has the block; without the fd its channel is worth nothing, and shall say so.
  spdlog::error("block {:x} cannot be delivered: {}", effect.delivery.block,
                std::string((fd.ok() ? read_only.status() : fd.status()).message()));
  attach_->HangUp(effect.channel);
}

void BrokerProcess::Carry(const core::CloseChannel& effect) { attach_->CloseChannel(effect.channel); }

void BrokerProcess::Carry(const core::DropChannel& effect) {
  attach_->DropChannel(effect.channel);
  audit_->EndProcess(effect.channel);
}

void BrokerProcess::Carry(const core::DropSession& effect) {
  attach_->DropSession(effect.session);
  audit_->EndSession(effect.session);
}

void BrokerProcess::Carry(const core::OrderDevice& effect) {
  if (effect.order == core::DeviceOrder::kKill || effect.order == core::DeviceOrder::kKillMonitor)
    spdlog::error("device {}: {}", effect.device, effect.why);
  Audit("order_device", {{"device", std::to_string(effect.device)},
                         {"order", std::to_string(static_cast<int>(ToWire(effect.order)))},
                         {"cause", effect.why}});
  custody_->Order(effect.device, effect.lane, ToWire(effect.order), effect.why);
}

void BrokerProcess::Audit(const char* what, std::vector<service::AuditFact> facts) {
  audit_->Append({.what = what, .facts = std::move(facts)});
}

void BrokerProcess::Carry(const core::DevicesChanged&) { watches_->Changed(); }

void BrokerProcess::Carry(const core::LogRecord& effect) { log_->Append(effect); }

void BrokerProcess::Carry(const core::LeaseRecord& effect) { history_->Append(effect); }

void BrokerProcess::Carry(const core::ModuleWork& effect) { modules_->Carry(effect); }

void BrokerProcess::ArmTimer(absl::Time when) { loop_->ArmTimer(when); }

void BrokerProcess::Wake() { loop_->Wake(); }

}  // namespace berth
