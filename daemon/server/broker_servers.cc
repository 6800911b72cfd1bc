// The client-facing part of the broker: gRPC's services, the sockets, and the limits on them and on the broker's
// memory.

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "daemon/base/halted_processes.h"
#include "daemon/base/private_folder.h"
#include "daemon/base/program_check.h"
#include "daemon/base/stderr_log.h"
#include "daemon/core/types/effects.h"
#include "daemon/server/broker_process.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/transport/grpc_server.h"
#include "daemon/service/transport/grpc_service.h"
#include "daemon/service/transport/single_poller.h"
#include "daemon/supervisor/fd_store/fd_reserve.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// Time for the audit log to write its last records when the broker ends itself.
constexpr absl::Duration kFlushPatience = absl::Milliseconds(100);
// Time for the responses to calls in progress to leave when the daemon stops. The supervisor gives the whole broker 500
// ms.
constexpr absl::Duration kStopGrace = absl::Milliseconds(350);
constexpr absl::Duration kStopPause = absl::Milliseconds(1);
// The fewest fds for clients with which a daemon serves.
constexpr int kLeastClientFds = 16;

}  // namespace

BrokerProcess::~BrokerProcess() = default;

absl::Status BrokerProcess::StartServers(const Options& options, const Settings& settings) {
  BERTH_ASSIGN_OR_RETURN(StatePage writable, StatePage::MapWritable(page_fd_.get()));
  page_.emplace(std::move(writable));
  upgrade_ = std::make_unique<UpgradeWatch>(loop_.get(), &**page_, [this] { EndExecuted(); });
  connections_ = std::make_unique<service::ConnectionTable>(settings.connections);
  connections_->SetQuotas(settings.core.quotas);
  guard_ = std::make_unique<service::ClientLimits>(connections_.get(), audit_.get(), settings.attach.accepts);
  callers_ = std::make_unique<service::CallerSource>(connections_.get());

  auto node = std::make_unique<v1::Node>();
  node->set_id(facts_.node);
  node->set_incarnation(facts_.incarnation);
  node->set_epoch(facts_.epoch);
  node->set_version(kVersion);
  const std::vector<core::DeviceView> devices = core_->ListDevices();
  if (!devices.empty()) node->set_kind(static_cast<v1::MemoryKind>(devices.front().kind));

  watches_ =
      std::make_unique<service::DeviceWatches>(broker_.get(), monitor_client_.get(), facts_.incarnation ^ facts_.epoch);
  watches_->SetQuotas(settings.core.quotas);
  const service::ServiceContext context = {broker_.get(), callers_.get(), audit_.get(), settings_.get()};
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(service::MakeSessionService(context));
  services.push_back(service::MakePermitService(context));
  services.push_back(service::MakeMemoryService(context, log_.get()));
  services.push_back(service::MakeFenceService(context));
  services.push_back(service::MakePlanService(context));
  services.push_back(service::MakeModuleService(context));
  services.push_back(service::MakeDeviceService(context, watches_.get()));
  services.push_back(service::MakeInventoryService(context, monitor_client_.get()));
  service::AdminActions actions = {
      .reset = [this](uint32_t by_uid) { Reset(by_uid); },
      .prepare_upgrade =
          [this, program = options.program] {
            const absl::Status checked = CheckProgram(program);
            if (checked.ok()) upgrade_->Forget();
            return checked;
          },
      .upgrade =
          [this] {
            upgrade_->OnRequest();
            fd_store_->SendCommand(/*device=*/0, WorkerKind::kMain, WorkerCommand::kUpgrade, "");
          },
      .stop = [this](bool end_leases, uint32_t by_uid) { StopDaemon(end_leases, by_uid); }};
  services.push_back(service::MakeAdminService(context, config_.get(), std::move(actions)));
  services.push_back(service::MakeHistoryService(context, history_.get()));
  services.push_back(service::MakeNodeService(
      {.node = std::move(node),
       .broker = broker_.get(),
       .log = log_.get(),
       .audit = audit_.get(),
       .history = history_.get(),
       .settings = settings_.get(),
       .page = &**page_,
       .read_upgrade_fault = [this] { return upgrade_->fault(); },
       .read_pressure = [this](v1::Pressure* pressure) { ReadPressure(pressure); }}));
  BERTH_ASSIGN_OR_RETURN(grpc_, service::GrpcServer::Start(std::move(services), connections_.get()));
  poller_ = std::make_unique<service::SinglePoller>();
  grpc_->SetServing(ledger_fault_.ok());

  const auto hand_over = [this](int fd) {
    guard_->Watch(fd);
    grpc_->AddConnection(fd);
  };
  acceptor_ =
      std::make_unique<service::Acceptor>(loop_.get(), guard_->accept_gate(), connections_.get(), hand_over);
  acceptor_->SetAuditLog(audit_.get());
  BERTH_ASSIGN_OR_RETURN(UniqueFd page, ReopenReadOnly(page_fd_.get()));
  service::AttachLimits attach_limits = settings.attach;
  // The other half is for all other users, and for gRPC.
  attach_limits.fds_per_uid =
      std::max(1, std::min<int>(attach_limits.fds_per_uid, ClientFdLimit() / 2));
  attach_limits.fds = static_cast<uint32_t>(ClientFdLimit());
  attach_ = std::make_unique<service::AttachServer>(
      loop_.get(), broker_.get(), fd_store_.get(),
      service::NodeFacts{.node = facts_.node, .incarnation = facts_.incarnation, .folder = options.folder},
      std::move(page), attach_limits);
  attach_->SetHearing(&page_->writable().hearing);
  attach_->SetAuditLog(audit_.get());
  attach_->RecognizeOperatorsBy(admin_attach_listener_.get());
  return absl::OkStatus();
}

absl::Status BrokerProcess::Listen() {
  using Listener = fd_store::Listener;
  BERTH_RETURN_IF_ERROR(ListenOn(Listener::kAttach, std::move(attach_listener_)));
  BERTH_RETURN_IF_ERROR(ListenOn(Listener::kAdminAttach, std::move(admin_attach_listener_)));
  BERTH_RETURN_IF_ERROR(ListenOn(Listener::kBerthd, std::move(berthd_listener_)));
  BERTH_RETURN_IF_ERROR(ListenOn(Listener::kObserver, std::move(observer_listener_)));
  return ListenOn(Listener::kAdmin, std::move(admin_listener_));
}

absl::Status BrokerProcess::ListenOn(fd_store::Listener listener, UniqueFd socket) {
  using Role = service::Peer::Role;
  switch (listener) {
    case fd_store::Listener::kAttach:
      return attach_->Listen(std::move(socket), /*of_operators=*/false);
    case fd_store::Listener::kAdminAttach:
      return attach_->Listen(std::move(socket), /*of_operators=*/true);
    case fd_store::Listener::kBerthd:
      return acceptor_->Listen(std::move(socket), Role::kTenant);
    case fd_store::Listener::kObserver:
      return acceptor_->Listen(std::move(socket), Role::kObserver);
    case fd_store::Listener::kAdmin:
      return acceptor_->Listen(std::move(socket), Role::kAdmin);
  }
  return absl::InternalError("the supervisor sent a listening socket of an unknown kind");
}

absl::Status BrokerProcess::WatchMemory(const Settings& settings) {
  const Bytes bound = settings.broker_memory;
  BERTH_ASSIGN_OR_RETURN(const Bytes now_has, ReadOwnMemory());
  // The restored state of clients is bounded, and does not raise the memory limit (docs/concepts/limits.md).
  const Bytes idle = SaturatingSub(now_has, restored_memory_);
  if (facts_.begun == 0) BERTH_RETURN_IF_ERROR(MemoryBound::Check(bound, idle));
  memory_ = std::make_unique<MemoryWatch>(MemoryBound(bound, idle, SteadyNow()),
                                          [this](Bytes has) { EndForMemory(has); });
  return fd_store_->Bound(memory_->bound().count());
}

absl::Status BrokerProcess::CheckFdsForClients() const {
  // In a later broker, fds in use may belong to clients of an earlier broker.
  if (facts_.begun != 0) return absl::OkStatus();
  const UniqueFd next(::fcntl(page_fd_.get(), F_DUPFD_CLOEXEC, 0));
  const bool enough = next && next.get() + kLeastClientFds <= ClientFdLimit();
  return enough ? absl::OkStatus() : OsError(absl::StrCat(kLeastClientFds, " file descriptors for clients"), EMFILE);
}

void BrokerProcess::EndForMemory(Bytes has) {
  ++page_->writable().memory_restarts;
  const std::string bound = FormatBytes(memory_->bound());
  spdlog::critical("broker uses {} of memory, limit {} (limits.broker_memory); restarting it", FormatBytes(has), bound);
  Audit("end_broker", {{"memory", FormatBytes(has)}, {"limit", bound}});
  audit_->Flush(kFlushPatience);
  ::_exit(1);
}

void BrokerProcess::ReadPressure(v1::Pressure* pressure) const {
  pressure->set_memory_bytes(memory_->has().count());
  pressure->set_memory_bound_bytes(memory_->bound().count());
  pressure->set_memory_restarts((*page_)->memory_restarts);
  pressure->set_ended_connections(guard_->ended_total());
  pressure->set_refused_connections(guard_->refused_total() + attach_->refused_total());
}

absl::Status BrokerProcess::OpenLog(const Settings& settings) {
  absl::StatusOr<std::unique_ptr<service::AllocationLog>> log = service::AllocationLog::Open(
      settings.log_file, facts_.incarnation, last_good_config_->TakeUpOutput(settings));
  if (!log.ok()) {
    // Existing leases continue without the log.
    if (facts_.begun == 0) return AsConfigurationMistake(log.status());
    spdlog::critical("cannot open the allocation log: {}; continuing without its file",
                     std::string(log.status().message()));
    log = service::AllocationLog::WithoutItsFile(settings.log_file.value_or(""), facts_.incarnation);
  }
  log_ = *std::move(log);
  return absl::OkStatus();
}

absl::Status BrokerProcess::OpenAudit(const Settings& settings, const std::string& state) {
  // The supervisor has checked the folder of --state.
  if (settings.audit_folder.has_value() && settings.audit_size > Bytes(0)) {
    absl::Status safe = CheckAbove(*settings.audit_folder);
    if (safe.ok()) safe = CheckPrivate(*settings.audit_folder);
    const std::string why = absl::StrCat(settings.origins.at("log.audit_folder").where, ": log.audit_folder: ",
                                         safe.message());
    if (!safe.ok() && facts_.begun == 0) return AsConfigurationMistake(absl::Status(safe.code(), why));
    // Existing leases continue, and so does the record of them.
    if (!safe.ok()) spdlog::critical("{}; continuing", why);
  }
  audit_ = std::make_unique<service::AuditLog>(
      service::AuditLog::Options{.folder = settings.audit_folder.value_or(state),
                                 .size = settings.audit_size,
                                 .incarnation = facts_.incarnation,
                                 .epoch = facts_.epoch});
  return absl::OkStatus();
}

absl::Status BrokerProcess::ReopenLogs() {
  const absl::Status log = log_->Reopen();
  const absl::Status audit = audit_->Reopen();
  if (log.ok() || audit.ok()) return log.ok() ? audit : log;
  return absl::Status(log.code(), absl::StrCat(log.message(), "; ", audit.message()));
}

void BrokerProcess::WatchLog() {
  // A file, which cannot be watched, always takes more.
  loop_->Watch(STDERR_FILENO, EPOLLOUT | EPOLLET, [](uint32_t) { StderrLog().Flush(); }).IgnoreError();
}

void BrokerProcess::LogConfigChanges() {
  if (!last_good_config_->earlier().has_value()) return;
  for (const service::ConfigChange& change : config_->ChangesSince(*last_good_config_->earlier())) {
    spdlog::info("configuration: {}: {} -> {}", change.key, change.from, change.to);
  }
}

void BrokerProcess::BeginReload() {
  // A thread that is already reloading reloads once more.
  if (reloads_.fetch_add(1) == 0) reloader_->Ask();
}

void BrokerProcess::Reload() {
  const absl::Status reopened = config_->ReopenLogs();
  absl::StatusOr<std::vector<service::ConfigChange>> changes = absl::AbortedError("");
  for (bool reported = false; absl::IsAborted(changes.status());) {
    if (stopping_) return;
    const std::optional<ConfigMark> complete = last_good_config_->AwaitSettled();
    if (complete.has_value()) {
      changes = config_->ReloadMarked(complete);
    } else if (!std::exchange(reported, true)) {
      spdlog::warn("reload: the configuration file is still being written; reading it once it has been the same for "
                   "{}, or {} if it stays open for writing",
                   absl::FormatDuration(LastGoodConfig::kSettle), absl::FormatDuration(LastGoodConfig::kSettleOpen));
    }
  }
  service::AuditRecord record = {.what = "reload", .outcome = changes.ok() ? reopened : changes.status()};
  if (!changes.ok()) {
    spdlog::error("reload: {}", std::string(changes.status().message()));
    if (!reopened.ok()) record.facts.emplace_back("logs", std::string(reopened.message()));
  }
  for (const service::ConfigChange& change : changes.value_or(std::vector<service::ConfigChange>())) {
    const std::string text = absl::StrCat(change.key, ": ", change.from, " -> ", change.to);
    spdlog::info("configuration: {}{}", text, change.why_not.empty() ? "" : " (not applied: " + change.why_not + ")");
    if (change.why_not.empty()) record.facts.emplace_back("change", text);
  }
  audit_->Append(std::move(record));
  // A value that the file changes is no longer an operator's setting.
  settings_->Save();
}

void BrokerProcess::AwaitAnswers() const {
  const absl::Time deadline = EventLoop::SteadyNow() + kStopGrace;
  while ((broker_->open_calls() > 0 || watches_->open() > 0) && EventLoop::SteadyNow() < deadline) {
    broker_->Continue();
    absl::SleepFor(kStopPause);
  }
  if (broker_->open_calls() + watches_->open() > 0) {
    spdlog::warn("stopping: {} calls and {} watches still open after {} ms; ending them", broker_->open_calls(),
                 watches_->open(), absl::ToInt64Milliseconds(kStopGrace));
  }
  // A response made in a handler leaves when the handler returns.
  absl::SleepFor(kStopPause);
}

void BrokerProcess::Apply(const core::LookAtProcesses& effect) {
  {
    MutexLock lock(&look_mu_);
    look_ = effect;
  }
  // A look takes milliseconds, for which no other effect should wait.
  loop_->Wake();
}

void BrokerProcess::OnWake() {
  broker_->Continue();
  core::LookAtProcesses look;
  {
    MutexLock lock(&look_mu_);
    std::swap(look, look_);
  }
  std::vector<ChannelId> stopped;
  HaltedProcesses halted;
  for (const core::LookAtProcesses::Process& process : look.processes) {
    if (halted.Has(process.pid)) stopped.push_back(process.channel);
  }
  if (stopped.empty()) return;
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ProcessesStopped(now, stopped, effects);
  });
}

}  // namespace berth
