// The vault: the daemon's parent process. It keeps duplicates of every fd that must outlive the broker,
// starts broker and workers, watches them by pidfd, and starts them again. It is a poll loop: no gRPC, no
// CUDA, no threads, so that there is little in it that could fail.

#ifndef DAEMON_VAULT_VAULT_H_
#define DAEMON_VAULT_VAULT_H_

#include <sys/resource.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/lane.h"
#include "common/state_page.h"
#include "common/unique_fd.h"
#include "daemon/device/device_record.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/cgroups.h"
#include "daemon/vault/child_process.h"
#include "daemon/vault/estate.h"
#include "daemon/vault/fd_store.h"
#include "daemon/vault/restart_policy.h"
#include "daemon/vault/run_folder.h"
#include "daemon/vault/supervision.h"

namespace berth {

struct VaultOptions {
  // Of the sockets.
  std::string folder;
  // Whose members may look at everything (observer.sock); nothing for nobody.
  std::optional<gid_t> observers;
  // What inventory and broker are started with, beside their role.
  std::vector<std::string> child_flags;
  // Describes host devices that are not there (daemon/device/node_script.h); empty for none.
  std::string host_devices_file;
  // Gets "ready\n" once a broker serves, and is closed; -1 for none. Run() takes it over.
  int ready_fd = -1;
  // The socket to a broker that hands over what an earlier vault kept; -1 to start a daemon. Run() takes it over.
  int broker_fd = -1;
  // Replace the processes that there are, too: this program is a newer one.
  bool renew = false;
};

// Vault is the process: made and run once, by its main thread.
class Vault {
 public:
  // Takes the folder, finds the devices, starts the processes, and serves until SIGTERM or SIGINT: then it ends them,
  // within 1 s in all, and removes the sockets. SIGHUP has the broker read the configuration file anew. With a broker's
  // socket it goes on where the vault before it ended instead of starting anything; with what a service manager
  // kept, it starts everything and goes on with the leases.
  // Returns: OK after a clean stop.
  // Errors: kFailedPrecondition if another daemon has the folder (nothing was touched); kUnavailable if five
  // brokers in a row ended before they served, the inventory failed, or a broker handed nothing over; those of the
  // system.
  static absl::Status Run(const VaultOptions& options);

 private:
  static constexpr std::chrono::seconds kBrokerStartLimit{30};

  // A process that looks at devices, and what it writes.
  struct Inventory {
    ChildProcess process;
    UniqueFd table;
    MonotonicTime deadline;
  };
  // One of a device's workers.
  struct Worker {
    DeviceRecord record;
    Lane lane = Lane::kMain;
    std::optional<ChildProcess> process;
    Supervision supervision;
    // Its device is lost, by whoever's word, and has not been brought back since.
    bool lost = false;
    // A context worker whose memory nobody shall trust any more: it is gone, or was killed.
    bool over = true;
    // Looks whether the device works; of a main worker that is to be brought back.
    std::optional<Inventory> test;
    // When it is started, where it could not be: while it should run and has no process. max() for not by that.
    MonotonicTime start = MonotonicTime::max();
    StartRetries retries;
    // Why an operator drains the device; empty where nobody does. Of a main worker.
    std::string drain_reason;
  };
  // The process that reads drivers.
  struct Monitor {
    ChildProcess process;
    MonotonicTime started;
    // When it is given up, after it was killed.
    MonotonicTime kill_deadline = MonotonicTime::max();
  };
  // How far an upgrade has come.
  enum class Upgrade {
    kNone,
    // Of this vault, once nothing is under way that another program could not know of.
    kWanted,
    // Of the broker, which is being replaced.
    kBroker,
    // Of the workers, from renewed_ on.
    kWorkers,
  };
  // One life of the broker.
  struct Broker {
    ChildProcess process;
    BrokerLink link;
    bool served = false;
    // For the first Ready; a broker that needs longer is stuck.
    MonotonicTime start_deadline;
  };

  Vault(const VaultOptions& options, RunFolder folder, UniqueFd signals, StatePage page, rlim_t fds);

  absl::Status Start(UniqueFd page);
  // Starts workers, monitor and broker.
  absl::Status StartProcesses();
  // Serves until it is asked to stop or fails, then ends everything.
  absl::Status ServeAndStop();
  absl::Status Serve();
  // Ends every process.
  void Stop();
  // Has nobody go on, or leaves it to the service manager to start another daemon that does.
  void CloseBooks(bool over);

  absl::Status StartBroker();
  // Starts one, now or later.
  void TryStartBroker();
  // Gives the broker a cgroup of its own, where that may be done. First of all: processes are where they are started.
  void DivideCgroup();
  // Says once that the broker is not where it should be.
  void NoteCgroup(const absl::Status& status);
  absl::Status OnBrokerDeath();
  // Serves what the broker has sent; kills one that breaks the protocol.
  void ReadFromBroker();
  void OnRequest(PutRequest request);
  void OnRequest(DropRequest request);
  void OnRequest(ReadySignal request);
  void OnRequest(ResetSignal request);
  void OnRequest(BoundRequest request);
  void OnRequest(OrderRequest request);

  // Waits for the broker to end, serving it meanwhile.
  bool AwaitBroker(MonotonicTime deadline);
  // Whether a signal asked to stop. One that asked to reload is noted.
  bool StopAsked();
  // Passes on what a signal asked.
  void AttendReload();

  // ---- vault_succession.cc: vaults before and after this one -----------------------------------------------

  // Goes on where another vault ended.
  static absl::Status Succeed(const VaultOptions& options, rlim_t fds, UniqueFd signals);
  absl::Status TakeEstate(Estate estate, UniqueFd broker);
  // Takes the next step of an upgrade.
  void AttendUpgrade();
  // Puts the program that is installed by now in the place of this one. Returns where there is none that can be run.
  void Exec();
  // `status` is the last that was said of it; null for nothing.
  absl::Status AdoptWorker(Worker& worker, const custody::WorkerStatus* status);

  // ---- vault_store.cc: what the service manager keeps --------------------------------------------------------

  // Begins what it kept of leases that are out, or else a daemon of its own.
  static absl::Status Begin(const VaultOptions& options, rlim_t fds, UniqueFd signals, UniqueFd ready);
  // What can be gone on with. Errors: kFailedPrecondition, saying why it cannot.
  static absl::StatusOr<StoreRecord> FindRecord(const HeldFds& kept, uint64_t node);
  // Goes on where vault and broker ended at once.
  absl::Status Resume(HeldFds kept, StoreRecord record);
  // Has the service manager keep what it shall, if there is one.
  void OpenStore();
  // Sends it what is due, and tells the broker what it let go of.
  void AttendStore();

  // ---- vault_workers.cc: devices and their workers --------------------------------------------------------

  // The devices of a table.
  static absl::StatusOr<std::vector<DeviceRecord>> ReadRecords(int table);
  // Finds the node's devices.
  // Errors: kCancelled if a signal asked to stop meanwhile.
  absl::Status FindDevices();
  // One for each lane of each device, none of which runs.
  void ListWorkers(const std::vector<DeviceRecord>& records);
  absl::StatusOr<Inventory> StartInventory();
  // Requires: it has ended, or its deadline has passed.
  static absl::StatusOr<std::vector<DeviceRecord>> TakeInventory(Inventory& inventory);

  Worker* FindWorker(uint32_t device, Lane lane);
  absl::Status StartWorker(Worker& worker);
  // Keeps what the broker has of a process that has just been started, and gives it: its socket, and its pidfd for
  // vaults to come.
  absl::Status Give(custody::Key socket_key, UniqueFd socket, custody::Key process_key, const ChildProcess& process);
  // Starts one, now or later.
  void TryStartWorker(Worker& worker);
  void KillWorker(Worker& worker, Supervision::Then then, const std::string& why);
  // Moves the generation of what a context worker makes, once in its life.
  void EndContext(Worker& worker);
  void OnWorkerDeath(Worker& worker);
  // Acts on deaths and on the time, for all workers.
  void AttendWorkers();
  void DropDevice(uint32_t device, const std::string& why);
  void ResetDevice(uint32_t device, const std::string& why);
  // Moves the device's generation, once until it is brought back, and has its workers end for good. `seen_by` has ended
  // already; null for none.
  void LoseDevice(uint32_t device, const Worker* seen_by, const std::string& why);
  void QueueStatus(const Worker& worker);
  DeviceWords& WordsOf(const Worker& worker) { return page_.writable().devices[worker.record.ordinal]; }
  // Of the memory that it makes.
  std::atomic<uint64_t>& GenerationOf(const Worker& worker) {
    DeviceWords& words = WordsOf(worker);
    return worker.lane == Lane::kMain ? words.generation : words.context_generation;
  }

  // ---- vault_monitor.cc: the processes that look at devices that are known ----------------------------------

  // Where there are drivers to read: GPUs', or a simulated node's.
  bool WantsMonitor() const;
  void StartMonitor();
  void KillMonitor(const std::string& why);
  // Acts on its death and on the time.
  void AttendMonitor();
  MonotonicTime monitor_wake() const;
  // Brings the device back if it passes.
  void StartTest(Worker& worker);
  void OnTestDone(Worker& worker);

  const VaultOptions options_;
  // Where this program was started from, whatever is there by now.
  const std::string program_;
  RunFolder folder_;
  const UniqueFd signals_;
  StatePage page_;
  UniqueFd ready_;
  const size_t custody_limit_;
  uint64_t incarnation_ = 0;
  // A broker of this incarnation has served.
  bool begun_ = false;
  // No broker has since vault and broker died at once, or something was lost on its way into custody.
  bool lost_ = false;
  // The configuration file is to be read anew.
  bool reload_ = false;
  uint64_t epoch_ = 0;

  HeldFds held_;
  // Where the service's may be divided.
  std::optional<Cgroups> cgroups_;
  // Where there is a service manager.
  std::optional<FdStore> store_;
  // By device, its main one first.
  std::vector<Worker> workers_;
  std::optional<Monitor> monitor_;
  // One that SIGKILL did not end: there is another, but no third.
  std::optional<Monitor> abandoned_monitor_;
  MonitorRestarts monitor_restarts_;
  // When the next monitor starts, while there is none; max() for never.
  MonotonicTime monitor_start_ = MonotonicTime::max();
  Upgrade upgrade_ = Upgrade::kNone;
  // The broker's that is being replaced.
  uint64_t replaced_epoch_ = 0;
  // Workers that are of this program, or being replaced; all before.
  size_t renewed_ = 0;
  std::optional<Broker> broker_;
  bool said_no_cgroup_ = false;
  BrokerRestarts broker_restarts_;
  StartRetries broker_retries_;
  // When the next broker starts, while there is none.
  MonotonicTime broker_start_;
};

}  // namespace berth

#endif  // DAEMON_VAULT_VAULT_H_
