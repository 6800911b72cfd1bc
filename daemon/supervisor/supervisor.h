// Supervisor: the supervisor, the daemon's parent process. The supervisor holds duplicates of every fd that must
// outlive the broker. It starts broker and workers, watches them by pidfd, and restarts them. The supervisor is a poll
// loop without gRPC, CUDA or threads, so that little in it can fail.

#ifndef DAEMON_SUPERVISOR_SUPERVISOR_H_
#define DAEMON_SUPERVISOR_SUPERVISOR_H_

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
#include "common/os/unique_fd.h"
#include "common/wire/state_page.h"
#include "daemon/base/worker_kind.h"
#include "daemon/device/monitor/device_record.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/node_record.h"
#include "daemon/supervisor/fd_store/service_manager_fd_store.h"
#include "daemon/supervisor/folder/folder_watch.h"
#include "daemon/supervisor/folder/run_folder.h"
#include "daemon/supervisor/handover_state.h"
#include "daemon/supervisor/processes/cgroups.h"
#include "daemon/supervisor/processes/child_process.h"
#include "daemon/supervisor/processes/restart_policy.h"
#include "daemon/supervisor/processes/supervision.h"

namespace berth {

struct SupervisorOptions {
  // Run folder, which has the sockets.
  std::string folder;
  FolderGroups groups;
  // Flags for inventory and broker, beside their role.
  std::vector<std::string> child_flags;
  // Describes simulated host devices (daemon/device/monitor/node_script.h); empty for none.
  std::string host_devices_file;
  // Gets "ready\n" once a broker serves, and is closed; -1 for none. Run() takes ownership.
  int ready_fd = -1;
  // Socket to a broker that hands over the state of an earlier supervisor; -1 to start a daemon. Run() takes ownership.
  int broker_fd = -1;
  // Replace the running processes too: this program is newer than theirs.
  bool renew = false;
  // The path of the program that an upgrade executes; empty for the path that this program was started from.
  std::string program;
};

// Supervisor is the process: made and run once, by its main thread.
class Supervisor {
 public:
  // Takes the folder, finds the devices, starts the processes, and serves until SIGTERM or SIGINT. Then ends the
  // processes, within 1 s in all, and removes the sockets. SIGHUP makes the broker reload the configuration file. With
  // a broker's socket, Run() takes over the running processes of the earlier supervisor instead. With fds from a
  // service manager, Run() starts every process and resumes the leases.
  // Returns: OK after a clean stop.
  // Errors: kFailedPrecondition if another daemon has the folder (nothing was touched); kInvalidArgument if a broker
  // found a mistake in the configuration; kUnavailable if five brokers in a row ended before they served, the inventory
  // failed, or a broker handed nothing over; those of the system.
  static absl::Status Run(const SupervisorOptions& options);

 private:
  static constexpr std::chrono::seconds kBrokerStartLimit{30};

  // A process that inspects devices, and the memfd that it writes.
  struct Inventory {
    ChildProcess process;
    UniqueFd table;
    MonotonicTime deadline;
  };
  // One of a device's workers.
  struct Worker {
    DeviceRecord record;
    WorkerKind worker_kind = WorkerKind::kMain;
    std::optional<ChildProcess> process;
    Supervision supervision;
    // The device is lost, whichever process reported it, and has not been brought back since.
    bool lost = false;
    // The memory of this context worker is no longer valid: the worker has ended or was killed.
    bool over = true;
    // Self-test of a main worker's device before it is brought back; nullopt if none runs.
    std::optional<Inventory> test;
    // Time of the next start try, while the worker should run and has no process; max() for no try.
    MonotonicTime start = MonotonicTime::max();
    StartRetries retries;
    // Why an operator drains the device; empty if not drained. Main workers only.
    std::string drain_reason;
  };
  // The process that reads drivers.
  struct Monitor {
    ChildProcess process;
    MonotonicTime started;
    // When the monitor is abandoned, after it was killed; max() before.
    MonotonicTime kill_deadline = MonotonicTime::max();
  };
  // Progress of an upgrade.
  enum class Upgrade {
    kNone,
    // The supervisor execs as soon as no operation is in progress that another program could not know of.
    kWanted,
    // The broker is to be replaced.
    kBroker,
    // The workers from renewed_ on are to be replaced.
    kWorkers,
  };
  // One life of the broker.
  struct Broker {
    ChildProcess process;
    BrokerLink link;
    bool served = false;
    // Deadline of the first Ready; a broker that needs longer is stuck.
    MonotonicTime start_deadline;
    // The broker runs an earlier program, whose version may not know Exec.
    bool earlier = false;
    // The broker got an Exec, and ends this process if no program takes over in time.
    bool exec_announced = false;
  };

  Supervisor(const SupervisorOptions& options, RunFolder folder, UniqueFd signals, StatePage page, rlim_t fds);

  absl::Status Start(UniqueFd page);
  // Holds duplicates of the fds from 3 on that this process inherited open for writing, for the broker. Requires: each
  // of this process's own fds is close-on-exec. Errors: kResourceExhausted for want of fds.
  absl::Status HoldInheritedOutputs();
  // Starts workers, monitor and broker.
  absl::Status StartProcesses();
  // Serves until a stop is requested or an error occurs, then ends every process.
  absl::Status ServeAndStop();
  absl::Status Serve();
  // Ends every process.
  void Stop();
  // Marks the daemon as over; without `over` leaves its state to the daemon that the service manager starts next.
  void CloseRecord(bool over);

  absl::Status StartBroker();
  // Starts a broker, or schedules a retry. Returns an error if no lease can exist and too many starts in a row failed.
  absl::Status TryStartBroker();
  // Gives the broker its own cgroup, if the service's may be divided. Called before any process starts: processes start
  // in their parent's cgroup.
  void DivideCgroup();
  // Logs once that the broker is not in its cgroup or has no limit.
  void RecordCgroup(const absl::Status& status);
  absl::Status OnBrokerDeath();
  // Serves the broker's requests; kills a broker that breaks the protocol.
  void ReadFromBroker();
  void OnRequest(PutRequest request);
  void OnRequest(DropRequest request);
  void OnRequest(ReadySignal request);
  void OnRequest(ResetSignal request);
  void OnRequest(BoundRequest request);
  void OnRequest(CommandRequest request);

  // Waits for the broker to end and serves it meanwhile. Returns whether it ended before `deadline`.
  bool AwaitBroker(MonotonicTime deadline);
  // Returns whether a signal or an operator requested a stop. Records a requested reload.
  bool StopAsked();
  // Passes a requested reload on to the broker.
  void AttendReload();

  // ---- supervisor_handover.cc: supervisors before and after this one -------------------------------------------

  // Continues where another supervisor ended.
  static absl::Status Succeed(const SupervisorOptions& options, rlim_t fds, UniqueFd signals);
  absl::Status TakeHandoverState(HandoverState handover_state, UniqueFd broker);
  // Takes the next step of an upgrade.
  void AttendUpgrade();
  // Has the broker watch the next program. Errors: those of pidfd_open.
  absl::Status AnnounceExec();
  // Execs the program that is now installed. Returns only if no installed program can be executed.
  void Exec();
  // Continues with this program, and reports why.
  void OnExecFailed(const std::string& why);
  // `status` is the worker's last status; null if it has none.
  absl::Status AdoptWorker(Worker& worker, const fd_store::WorkerStatus* status);

  // ---- supervisor_handover.cc: fds stored by the service manager ------------------------------------------------

  // Continues with the stored fds, or else begins a daemon, which resumes the leases of the previous daemon, if any.
  static absl::Status Begin(const SupervisorOptions& options, rlim_t fds, UniqueFd signals, UniqueFd ready);
  // Returns the record of a daemon that this supervisor can continue. Errors: kFailedPrecondition, with the reason.
  static absl::StatusOr<StoreRecord> FindRecord(const HeldFds& stored, uint64_t node);
  // Continues after supervisor and broker ended at once.
  absl::Status Resume(HeldFds stored, StoreRecord record);
  // Takes over the numbers of the daemon that was stopped or killed here, and with them its leases, unless those are
  // void.
  absl::Status ContinueRecord();
  // Continues without the numbers of the record, which is unusable for the reason `why`, if the ledger may have leases.
  // Returns whether it may.
  absl::StatusOr<bool> ContinueUnrecorded(const absl::Status& why);
  // Opens the folder's record of a continued daemon, and records this daemon in it.
  absl::Status OpenRecord();
  // Begins the record, unless the file must stay as it is for now.
  absl::Status BeginOpenedRecord();
  void BeginRecord();
  // Opens the service manager's fd store, if there is one.
  void OpenStore();
  // Sends due messages to the service manager, and reports to the broker the fds that the manager has released.
  void AttendStore();

  // ---- supervisor_folder.cc: the run folder, and its repair after deletions ------------------------------------

  // Puts the lock and the claim of the folder into the fd store.
  absl::Status HoldFolder();
  // Writes the node id and the record again if they are missing or damaged, unless another daemon has the folder.
  void RestoreRecords();
  // Checks the folder if that is due or `changed` is set, and recreates what is missing.
  void AttendFolder(bool changed);
  absl::Status HoldNewLock();
  // Logs each fault of the folder once; an empty `fault` means that the folder is complete.
  void LogFolderFault(const std::string& fault);
  // Replaces a held fd, for the broker and the service manager too.
  void Replace(fd_store::Key key, UniqueFd fd);

  // ---- supervisor_workers.cc: devices and their workers ---------------------------------------------------

  // Reads the devices of a table.
  static absl::StatusOr<std::vector<DeviceRecord>> ReadRecords(int table);
  // Finds the node's devices.
  // Errors: kCancelled if a signal requested a stop meanwhile.
  absl::Status FindDevices();
  // Adds one worker of each kind for each device; none of them runs.
  void ListWorkers(const std::vector<DeviceRecord>& records);
  // Starts the main worker of each device that can serve.
  void StartWorkers();
  // Returns why the device is out of service from the start on; empty if it is not.
  static std::string WhyNotStarted(const DeviceRecord& record);
  absl::StatusOr<Inventory> StartInventory();
  // Requires: the process has ended, or its deadline has passed.
  static absl::StatusOr<std::vector<DeviceRecord>> TakeInventory(Inventory& inventory);

  Worker* FindWorker(uint32_t device, WorkerKind worker_kind);
  absl::Status StartWorker(Worker& worker);
  // Holds the fds of a process that has just started, and gives them to the broker: the broker's end of its socket, and
  // its pidfd for later supervisors.
  absl::Status Give(fd_store::Key socket_key, UniqueFd socket, fd_store::Key process_key, const ChildProcess& process);
  // Starts a worker, or schedules a retry.
  void TryStartWorker(Worker& worker);
  void KillWorker(Worker& worker, Supervision::Then then, const std::string& why);
  // Advances the generation of a context worker's memory, once in its life.
  void EndContext(Worker& worker);
  void OnWorkerDeath(Worker& worker);
  // Handles ends and due times of all workers.
  void AttendWorkers();
  void DropDevice(uint32_t device, const std::string& why);
  void ResetDevice(uint32_t device, const std::string& why);
  // Advances the device's generation, once until the device is brought back, and ends its workers for good. `seen_by`
  // has ended already; null for none.
  void LoseDevice(uint32_t device, const Worker* seen_by, const std::string& why);
  void QueueStatus(const Worker& worker);
  DeviceEntry& EntryOf(const Worker& worker) { return page_.writable().devices[worker.record.ordinal]; }
  // Generation of the memory that the worker makes.
  std::atomic<uint64_t>& GenerationOf(const Worker& worker) {
    DeviceEntry& entry = EntryOf(worker);
    return worker.worker_kind == WorkerKind::kMain ? entry.generation : entry.context_generation;
  }

  // ---- supervisor_workers.cc: monitor and self-tests of known devices ------------------------------------------

  // Returns whether there are drivers to read: GPUs', or a simulated node's.
  bool WantsMonitor() const;
  void StartMonitor();
  void KillMonitor(const std::string& why);
  // Handles the monitor's end and due times.
  void AttendMonitor();
  MonotonicTime monitor_wake() const;
  // Starts a self-test; the device is brought back if it passes.
  void StartTest(Worker& worker);
  void OnTestDone(Worker& worker);

  // ---- supervisor_driver.cc: a driver that is not ready when the daemon starts ----------------------------------

  static constexpr std::chrono::milliseconds kFirstDriverPause{250};
  static constexpr std::chrono::milliseconds kLongestDriverPause{10'000};

  // Whether the one device stands for those that the driver does not list yet.
  bool AwaitsDriver() const;
  MonotonicTime driver_wake() const;
  // Takes another inventory when that is due, and handles its end.
  void AttendDriver();
  void OnDriverLook(absl::StatusOr<std::vector<DeviceRecord>> records, UniqueFd table);
  // Replaces the device that stood for them.
  void TakeUpDevices(const std::vector<DeviceRecord>& records, UniqueFd table);

  const SupervisorOptions options_;
  // The path that the daemon's program was started from, whatever file is there now.
  const std::string program_;
  RunFolder folder_;
  FolderWatch folder_watch_;
  // The folder's last logged fault; empty for none.
  std::string folder_fault_;
  const UniqueFd signals_;
  StatePage page_;
  UniqueFd ready_;
  const size_t fd_store_limit_;
  uint64_t incarnation_ = 0;
  // A broker of this incarnation has served.
  bool begun_ = false;
  // No broker has served since supervisor and broker ended at once, or since a Put was lost.
  bool lost_ = false;
  // The previous daemon recorded its processes by pids of another PID namespace.
  bool elsewhere_ = false;
  // The node record was missing or damaged at the start, beside a ledger that may have leases.
  bool unrecorded_ = false;
  // The broker shall reload the configuration file.
  bool reload_ = false;
  // An operator requested, through the broker, that the daemon stop.
  bool stop_commanded_ = false;
  uint64_t epoch_ = 0;

  HeldFds held_;
  // Set if the service's cgroup may be divided.
  std::optional<Cgroups> cgroups_;
  // Set if there is a service manager.
  std::optional<ServiceManagerFdStore> store_;
  // Set from the start on.
  std::optional<NodeRecord> record_;
  // Ordered by device, the main worker first.
  std::vector<Worker> workers_;
  std::optional<Monitor> monitor_;
  // A monitor that SIGKILL did not end: a second one runs beside it, but never a third.
  std::optional<Monitor> abandoned_monitor_;
  // The inventory that waits for the driver; nullopt if none runs. When the next one starts, and the pause after it.
  std::optional<Inventory> driver_look_;
  MonotonicTime next_driver_look_;
  std::chrono::milliseconds driver_pause_ = kFirstDriverPause;
  MonitorRestarts monitor_restarts_;
  // When the next monitor starts, while there is none; max() for never.
  MonotonicTime monitor_start_ = MonotonicTime::max();
  Upgrade upgrade_ = Upgrade::kNone;
  // Epoch of the broker that is being replaced.
  uint64_t replaced_epoch_ = 0;
  // Number of workers, from the first, that an upgrade has replaced or is replacing.
  size_t renewed_ = 0;
  std::optional<Broker> broker_;
  bool said_no_cgroup_ = false;
  bool said_fd_limit_ = false;
  BrokerRestarts broker_restarts_;
  StartRetries broker_retries_;
  // When the next broker starts, while there is none.
  MonotonicTime broker_start_;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_SUPERVISOR_H_
