// BrokerProcess: the broker role's composition root, and the only file that knows all of its parts.

#ifndef DAEMON_SERVER_BROKER_PROCESS_H_
#define DAEMON_SERVER_BROKER_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/end_notice.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/wire/state_page.h"
#include "daemon/broker/block_manager.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/device_monitor_client.h"
#include "daemon/broker/errand.h"
#include "daemon/broker/event_loop.h"
#include "daemon/broker/fence_page_manager.h"
#include "daemon/broker/history_writer.h"
#include "daemon/broker/module_store.h"
#include "daemon/config/config_manager.h"
#include "daemon/config/last_good_config.h"
#include "daemon/config/options.h"
#include "daemon/config/settings.h"
#include "daemon/core/core.h"
#include "daemon/device/monitor/device_record.h"
#include "daemon/ledger/ledger.h"
#include "daemon/recovery/ledger_restore.h"
#include "daemon/server/memory_watch.h"
#include "daemon/server/upgrade_watch.h"
#include "daemon/service/attach/attach_server.h"
#include "daemon/service/audit/allocation_log.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/limits/client_limits.h"
#include "daemon/service/rpc/caller.h"
#include "daemon/service/rpc/device_watch.h"
#include "daemon/service/rpc/settings_store.h"
#include "daemon/service/transport/acceptor.h"
#include "daemon/service/transport/connection_table.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"
#include "daemon/supervisor/processes/launcher.h"

namespace berth::service {
class GrpcServer;
class SinglePoller;
}  // namespace berth::service

namespace berth::v1 {
class Pressure;
}  // namespace berth::v1

namespace berth {

// Serves with the supervisor's Inheritance until the supervisor requests a stop.
class BrokerProcess final : private EffectSink {
 public:
  // Serves, and ends the process when the supervisor requests a stop. If the supervisor dies without a request,
  // `launcher` starts another supervisor. Returns only the error that keeps the broker from serving.
  static absl::Status Run(UniqueFd supervisor_socket, Launcher launcher, const Options& options);

 private:
  BrokerProcess(Inheritance inheritance, Launcher launcher, absl::StatusOr<RestoredLedger> restored);
  ~BrokerProcess();
  absl::Status Start(const Options& options);
  // Retries log lines once the reader of the log takes more.
  void WatchLog();
  // Logs which settings the file has changed since the earlier broker read it.
  void LogConfigChanges();
  // Opens the log of memory events. Errors: those of its file, but only when the daemon first starts.
  absl::Status OpenLog(const Settings& settings);
  // Opens the audit log, in the folder `state` if no setting names another. Errors: those of CheckPrivate() and
  // CheckAbove() on a folder that the settings name, but only when the daemon first starts.
  absl::Status OpenAudit(const Settings& settings, const std::string& state);
  // Reopens the files of both logs. Errors: those of each file that stays as it is.
  absl::Status ReopenLogs();
  // Takes the listeners, state page and device table from the inherited fds.
  absl::Status TakeOver();
  // Errors: kResourceExhausted if a daemon that first starts has no fds for clients.
  absl::Status CheckFdsForClients() const;
  std::unique_ptr<core::Core> MakeCore(const core::Config& config) const;
  // Creates the core from the ledger records of earlier brokers of this incarnation. If the ledger is unreadable, the
  // core is empty and ledger_fault_ gives the reason.
  absl::Status StartCore(const core::Config& config, const std::string& folder);
  absl::Status RestoreCore(const std::string& folder);
  // Ends the process; the next broker starts with an empty ledger.
  [[noreturn]] void BeginAnew(const absl::Status& why);
  // Applies the operators' settings that are missing in the ledger. Errors: those of the file, but only when the daemon
  // first starts.
  absl::Status TakeUpSettings();
  // Hands over monitor and workers, and continues the leases.
  absl::Status TakeUpLeases();
  // Releases an fd that belonged to an ended lease.
  void LetGo(HeldFd held);
  // Ends every lease, notifies the holders, and makes the next broker start with an empty ledger.
  void EndLeases(const EndNotice& end);
  // Calls EndLeases(), then ends the process.
  void Reset(uint32_t by_uid);
  // Orders the supervisor to end the daemon.
  void StopDaemon(bool end_leases, uint32_t by_uid);
  absl::StatusOr<std::vector<DeviceRecord>> ReadDeviceTable() const;
  absl::StatusOr<core::Config> MakeConfig(const std::vector<DeviceRecord>& devices,
                                          const Settings& settings) const;
  // Reports to the core the modules that an earlier daemon left on disk.
  void TakeUpModules(const std::string& state);
  absl::Status StartServers(const Options& options, const Settings& settings);
  absl::Status Listen();
  // Limits the broker's memory. Errors: kInvalidArgument if the limit is too small for the first broker.
  absl::Status WatchMemory(const Settings& settings);
  // Ends the process for exceeding its memory limit; another broker continues.
  [[noreturn]] void EndForMemory(Bytes has);
  void ReadPressure(v1::Pressure* pressure) const;
  // Watches the socket to the current supervisor.
  absl::Status WatchSupervisor();
  // Ends the process when the launcher ends: without the launcher, the supervisor's death would end all of the daemon.
  absl::Status WatchLauncher();
  // Switches to the socket of a new supervisor.
  void OnSupervisorReplaced();
  void OnSupervisorEvent();
  // Ends the process in which the supervisor executes another program, and replaces it.
  void EndExecuted();
  // Starts RetrySupervisor() on a thread of its own.
  void SeekSupervisor();
  // Retries the start of another supervisor until one runs, or the daemon ends.
  void RetrySupervisor();
  void OnNotice(Notice notice);
  // Listens on a socket that replaces the current one.
  absl::Status ListenOn(fd_store::Listener listener, UniqueFd socket);
  // Rereads the configuration file on a thread of its own, because its disk may be slow.
  void BeginReload();
  void Reload();
  // Writes the ledger's file again if it is missing in the folder, or was changed in place.
  void RestoreLedger();
  // The same, at once or after a pause: on a full disk, each attempt to rewrite the ledger changes the folder. Retries
  // a failed attempt.
  void RestoreLedgerSoon();
  // Takes the result of an attempt to write the ledger's file. Logs each new fault once, and its end.
  void RecordRestore(const absl::Status& restored);
  // Ends the process but no lease: the ledger preserves the leases for the next daemon, and the clients wait for it.
  // Calls in progress are cut off, and clients send them again.
  void Stop();
  // Waits, within a time limit, until the responses have reached their callers.
  void AwaitAnswers() const;

  void Apply(const core::CreateBlock& effect) override;
  void Apply(const core::ReleaseBlock& effect) override;
  void Apply(const core::MakeFencePage& effect) override;
  void Apply(const core::DropFencePage& effect) override;
  void Apply(const core::Deliver& effect) override;
  void Apply(const core::CloseChannel& effect) override;
  void Apply(const core::DropChannel& effect) override;
  void Apply(const core::DropSession& effect) override;
  void Apply(const core::SendWorkerCommand& effect) override;
  void Apply(const core::DevicesChanged& effect) override;
  void Apply(const core::LogRecord& effect) override;
  void Apply(const core::LeaseRecord& effect) override;
  void Apply(const core::ModuleWork& effect) override;
  void Apply(const core::LookAtProcesses& effect) override;
  void ArmTimer(absl::Time when) override;
  void Wake() override;
  // Executes queued effects, and looks at the processes that the core named last.
  void OnWake() ABSL_LOCKS_EXCLUDED(look_mu_);
  // Records a decision of the daemon itself in the audit log.
  void Audit(const char* what, std::vector<service::AuditFact> facts);
  void DeliverPage(const core::Deliver& effect);
  void DeliverModule(const core::Deliver& effect);

  Mutex look_mu_;
  core::LookAtProcesses look_ ABSL_GUARDED_BY(look_mu_);

  Launcher launcher_;
  const fd_store::Facts facts_;
  // Used up when the core has been created from it.
  absl::StatusOr<RestoredLedger> restored_ledger_;
  // Inherited fds that no component has taken. If the ledger is unreadable they stay here, in case a later broker can
  // read it.
  HeldFds held_;
  const std::unique_ptr<SupervisorFdStore> fd_store_;
  // The watch of the supervisor's socket.
  std::atomic<EventLoop::WatchId> supervisor_watch_ = 0;
  // The daemon is stopping, so the supervisor may end first.
  std::atomic<bool> stopping_ = false;
  // Calls in progress receive their responses before the process ends.
  bool answers_calls_ = false;
  // The supervisor is dead, and no other could be started yet.
  std::atomic<bool> seeking_ = false;
  UniqueFd berthd_listener_;
  UniqueFd admin_listener_;
  UniqueFd attach_listener_;
  UniqueFd observer_listener_;
  UniqueFd admin_attach_listener_;
  UniqueFd page_fd_;
  std::optional<StatePage> page_;
  UniqueFd device_table_;

  std::unique_ptr<service::AllocationLog> log_;
  std::unique_ptr<service::AuditLog> audit_;
  std::unique_ptr<HistoryWriter> history_;
  // The last permit whose revocation was delivered. Every process of a session receives the notice; the audit log
  // records one.
  uint64_t last_revoked_ = 0;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<FencePageManager> fences_;
  std::unique_ptr<LedgerFds> ledger_fds_;
  std::unique_ptr<Ledger> ledger_;
  absl::Status ledger_fault_;
  UniqueFd restore_timer_;
  absl::Time next_restore_ = absl::InfinitePast();
  // Why the last attempt to write the ledger's file failed; empty if it did not.
  std::string restore_fault_;
  std::unique_ptr<core::Core> core_;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<BlockManager> block_manager_;
  std::unique_ptr<DeviceMonitorClient> monitor_client_;
  std::unique_ptr<ModuleStore> modules_;
  std::unique_ptr<service::ConnectionTable> connections_;
  std::unique_ptr<service::CallerSource> callers_;
  std::unique_ptr<LastGoodConfig> last_good_config_;
  std::unique_ptr<service::SettingsStore> settings_;
  std::unique_ptr<service::ClientLimits> guard_;
  std::unique_ptr<ConfigManager> config_;
  // Requested reloads that have not ended.
  std::atomic<int> reloads_ = 0;
  std::unique_ptr<service::DeviceWatches> watches_;
  std::unique_ptr<service::GrpcServer> grpc_;
  std::unique_ptr<service::SinglePoller> poller_;
  std::unique_ptr<service::Acceptor> acceptor_;
  std::unique_ptr<service::AttachServer> attach_;
  // The memory that the restored records of an earlier broker take.
  Bytes restored_memory_;
  std::unique_ptr<MemoryWatch> memory_;
  std::unique_ptr<UpgradeWatch> upgrade_;
  // Declared last, because their threads use the other members.
  std::unique_ptr<Errand> seeker_;
  std::unique_ptr<Errand> reloader_;
};

}  // namespace berth

#endif  // DAEMON_SERVER_BROKER_PROCESS_H_
