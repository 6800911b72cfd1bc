// BrokerProcess: the broker role's composition root, and the only file that knows all of its parts.

#ifndef DAEMON_BROKER_PROCESS_H_
#define DAEMON_BROKER_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "common/bytes.h"
#include "common/state_page.h"
#include "common/unique_fd.h"
#include "daemon/broker/block_keeper.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/broker/fence_keeper.h"
#include "daemon/broker/history_keeper.h"
#include "daemon/broker/inventory_desk.h"
#include "daemon/broker/module_keeper.h"
#include "daemon/config_desk.h"
#include "daemon/core/core.h"
#include "daemon/core_config.h"
#include "daemon/device/device_record.h"
#include "daemon/kept_ledger.h"
#include "daemon/kept_config.h"
#include "daemon/ledger/ledger.h"
#include "daemon/memory_watch.h"
#include "daemon/options.h"
#include "daemon/service/acceptor.h"
#include "daemon/service/allocation_log.h"
#include "daemon/service/attach_front.h"
#include "daemon/service/audit_log.h"
#include "daemon/service/caller.h"
#include "daemon/service/connection_table.h"
#include "daemon/service/device_watch.h"
#include "daemon/service/front_guard.h"
#include "daemon/service/grpc_front.h"
#include "daemon/service/single_poller.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/custody.h"
#include "daemon/vault/starter.h"

namespace berth {

// Serves from the vault's Inheritance until the vault asks it to stop.
class BrokerProcess final : private EffectSink {
 public:
  // Where the sockets are, and what outlives the daemon.
  struct Folders {
    std::string sockets;
    std::string state;
  };
  // Ends the process once the vault asks for that. A vault that ends without asking is followed by another one, which
  // `starter` starts. Returns: whatever keeps it from serving.
  static absl::Status Run(UniqueFd vault_socket, const Folders& folders, Starter starter,
                          const BrokerOptions& options);

 private:
  BrokerProcess(Inheritance inheritance, Starter starter, absl::StatusOr<KeptLedger> kept);
  absl::Status Start(const Folders& folders, const BrokerOptions& options);
  // Opens the log of what happens to memory. Errors: its file's, where the daemon begins.
  absl::Status OpenLog(const Settings& settings);
  // Takes what serves on of what the vault held: listeners, page and table.
  absl::Status TakeOver();
  std::unique_ptr<core::Core> MakeCore(const core::Config& config) const;
  // Makes the core, of what an earlier broker of this incarnation has kept. Where that cannot be read the core is
  // empty, and ledger_fault_ says why.
  absl::Status StartCore(const core::Config& config, const std::string& folder);
  absl::Status RestoreCore(const std::string& folder);
  // Hands monitor and workers on, and goes on with the leases.
  absl::Status TakeUpLeases();
  // Lets go of what belonged to leases that are over.
  void LetGo(HeldFd held);
  // Has the next broker begin anew, and ends.
  void Reset();
  absl::StatusOr<std::vector<DeviceRecord>> ReadDeviceTable() const;
  absl::StatusOr<core::Config> MakeConfig(const std::vector<DeviceRecord>& devices,
                                          const Settings& settings) const;
  // Tells the core which modules an earlier daemon has left.
  void TakeUpModules(const std::string& state);
  absl::Status StartFronts(const std::string& folder, const Settings& settings);
  absl::Status Listen();
  // Bounds the broker's memory. Errors: kInvalidArgument where the first broker has no room in its bound.
  absl::Status WatchMemory(const Settings& settings);
  // Another broker is to go on.
  [[noreturn]] void EndForMemory(Bytes has);
  void ReadPressure(v1::Pressure* pressure) const;
  // Watches the socket to the vault that there is now.
  absl::Status WatchVault();
  // Ends the process with the starter: without one a vault's death would be everything's.
  absl::Status WatchStarter();
  // The socket is one to another vault now.
  void OnVaultReplaced();
  void OnVaultEvent();
  // Has another vault started as soon as one can be, on a thread of its own.
  void SeekVault();
  void OnNotice(Notice notice);
  // Has the configuration file read anew on a thread of its own, for its disk may be slow.
  void BeginReload();
  void Reload();
  void Stop();
  // Waits until whoever was answered has the answer, not for long.
  void AwaitAnswers() const;

  void Carry(const core::CreateBlock& effect) override;
  void Carry(const core::ReleaseBlock& effect) override;
  void Carry(const core::MakeFencePage& effect) override;
  void Carry(const core::DropFencePage& effect) override;
  void Carry(const core::Deliver& effect) override;
  void Carry(const core::CloseChannel& effect) override;
  void Carry(const core::DropChannel& effect) override;
  void Carry(const core::DropSession& effect) override;
  void Carry(const core::OrderDevice& effect) override;
  void Carry(const core::DevicesChanged& effect) override;
  void Carry(const core::LogRecord& effect) override;
  void Carry(const core::LeaseRecord& effect) override;
  void Carry(const core::ModuleWork& effect) override;
  void ArmTimer(absl::Time when) override;
  void Wake() override;
  // Keeps what the daemon has decided by itself.
  void Audit(const char* what, std::vector<service::AuditFact> facts);
  void DeliverPage(const core::Deliver& effect);
  void DeliverModule(const core::Deliver& effect);

  Starter starter_;
  const custody::Facts facts_;
  // Until the core is made of it.
  absl::StatusOr<KeptLedger> kept_;
  // What nobody has taken up. Where the ledger cannot be read it is kept, in case it can be later.
  HeldFds held_;
  const std::unique_ptr<Custody> custody_;
  // Of its socket.
  std::atomic<EventLoop::WatchId> vault_watch_ = 0;
  // The daemon is to end, its vault may end first.
  std::atomic<bool> stopping_ = false;
  // There is no vault, and none could be started; the thread that is at it, or was.
  std::atomic<bool> seeking_ = false;
  std::thread seeker_;
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
  std::unique_ptr<HistoryKeeper> history_;
  // The last permit that a process was told of as taken away: it is told to each of its session's.
  uint64_t last_revoked_ = 0;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<FenceKeeper> fences_;
  std::unique_ptr<Ledger> ledger_;
  absl::Status ledger_fault_;
  std::unique_ptr<core::Core> core_;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<BlockKeeper> keeper_;
  std::unique_ptr<InventoryDesk> desk_;
  std::unique_ptr<ModuleKeeper> modules_;
  std::unique_ptr<service::ConnectionTable> connections_;
  std::unique_ptr<service::CallerSource> callers_;
  std::unique_ptr<KeptConfig> kept_config_;
  std::unique_ptr<service::FrontGuard> guard_;
  std::unique_ptr<ConfigDesk> config_;
  // Reloads that were asked for and have not ended; the thread that is at them, or was.
  std::atomic<int> reloads_ = 0;
  std::thread reloader_;
  std::unique_ptr<service::DeviceWatches> watches_;
  std::unique_ptr<service::GrpcFront> grpc_;
  std::unique_ptr<service::SinglePoller> poller_;
  std::unique_ptr<service::Acceptor> acceptor_;
  std::unique_ptr<service::AttachFront> attach_;
  std::unique_ptr<MemoryWatch> memory_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_PROCESS_H_
