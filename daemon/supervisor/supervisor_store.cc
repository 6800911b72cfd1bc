// The supervisor's part for the service manager's fd store: starting from its content, and updating it.

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/supervisor/fd_store/service_manager.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

using fd_store::Key;
using fd_store::KeyMessage;
using fd_store::KeyOf;
using fd_store::Kind;
using fd_store::MessageKind;

// Hangs up lifelines and channels for their peers, even if other processes have duplicates of these fds.
void HangUp(const HeldFds& held) {
  for (const auto& [key, fd] : held) {
    if (key.kind == Kind::kLifeline || key.kind == Kind::kChannel) ::shutdown(fd.get(), SHUT_RDWR);
  }
}

}  // namespace

absl::Status Supervisor::Begin(const SupervisorOptions& options, rlim_t fds, UniqueFd signals, UniqueFd ready) {
  HeldFds stored = ServiceManagerFdStore::Sort(TakeHandedOver(), SendToServiceManager);
  UniqueFd lock;
  if (auto found = stored.extract(KeyOf(Kind::kFolderLock))) lock = std::move(found.mapped());
  const bool locked = static_cast<bool>(lock);
  BERTH_ASSIGN_OR_RETURN(RunFolder folder,
                         RunFolder::Take(options.folder, options.groups, std::move(lock)));
  absl::StatusOr<StoreRecord> record = FindRecord(stored, folder.node());
  if (record.ok()) {
    BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapWritable(stored.at(KeyOf(Kind::kStatePage)).get()));
    Supervisor supervisor(options, std::move(folder), std::move(signals), std::move(page), fds);
    supervisor.ready_ = std::move(ready);
    supervisor.DivideCgroup();
    const absl::Status resumed = supervisor.Resume(std::move(stored), *std::move(record));
    if (resumed.ok()) return supervisor.ServeAndStop();
    supervisor.Stop();
    supervisor.CloseRecord(/*over=*/false);
    return resumed;
  }
  // The stored fds may belong to a daemon that is not over.
  if (absl::IsResourceExhausted(record.status())) return record.status();
  if (!stored.empty()) {
    Log("cannot use the fds stored with the service manager: %s; ending their leases",
        std::string(record.status().message()).c_str());
    HangUp(stored);
    ServiceManagerFdStore::Forget(stored, SendToServiceManager);
    stored.clear();
  }
  if (locked) SendToServiceManager(ServiceManagerFdStore::RemovalOf(KeyOf(Kind::kFolderLock))).IgnoreError();
  BERTH_ASSIGN_OR_RETURN(UniqueFd page_fd, CreateStatePage());
  BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapWritable(page_fd.get()));
  Supervisor supervisor(options, std::move(folder), std::move(signals), std::move(page), fds);
  supervisor.ready_ = std::move(ready);
  supervisor.DivideCgroup();
  const absl::Status started = supervisor.Start(std::move(page_fd));
  if (started.ok()) return supervisor.ServeAndStop();
  supervisor.Stop();
  supervisor.CloseRecord(/*over=*/true);
  return absl::IsCancelled(started) ? absl::OkStatus() : started;
}

absl::StatusOr<StoreRecord> Supervisor::FindRecord(const HeldFds& stored, uint64_t node) {
  const auto found = stored.find(KeyOf(Kind::kStoreRecord));
  if (found == stored.end()) return absl::FailedPreconditionError("no store record with the fds");
  BERTH_ASSIGN_OR_RETURN(StoreRecord record, StoreRecord::Map(found->second.get()));
  BERTH_RETURN_IF_ERROR(record.Check(node));
  for (const Key& key : {KeyOf(Kind::kStatePage), KeyOf(Kind::kDeviceTable), KeyOf(fd_store::Listener::kBerthd),
                         KeyOf(fd_store::Listener::kAdmin), KeyOf(fd_store::Listener::kAttach),
                         KeyOf(fd_store::Listener::kObserver), KeyOf(fd_store::Listener::kAdminAttach)}) {
    if (!stored.contains(key)) {
      return absl::FailedPreconditionError(absl::StrCat("no fd named ", ServiceManagerFdStore::NameOf(key)));
    }
  }
  BERTH_ASSIGN_OR_RETURN(const StatePage page, StatePage::MapReadOnly(stored.at(KeyOf(Kind::kStatePage)).get()));
  if (page->incarnation != record.incarnation()) {
    return absl::FailedPreconditionError("the state page is of another incarnation");
  }
  BERTH_RETURN_IF_ERROR(ReadRecords(stored.at(KeyOf(Kind::kDeviceTable)).get()).status());
  return record;
}

absl::Status Supervisor::Resume(HeldFds stored, StoreRecord record) {
  incarnation_ = record.incarnation();
  begun_ = lost_ = true;
  epoch_ = page_->epoch;
  BERTH_RETURN_IF_ERROR(OpenRecord());
  folder_.KeepSockets();
  held_ = std::move(stored);
  Log("supervisor and broker died at once; resuming with %zu fds stored with the service manager", held_.size());
  store_.emplace(std::move(record), SendToServiceManager);
  store_->RecordStored(held_);
  BERTH_RETURN_IF_ERROR(HoldFolder());
  store_->Reconcile(Now(), held_, /*again=*/false);
  page_.writable().upgrading = 0;
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceRecord> records,
                         ReadRecords(held_.at(KeyOf(Kind::kDeviceTable)).get()));
  ListWorkers(records);
  for (Worker& worker : workers_) {
    // An earlier context worker's memory ended with it. (The generation of a main worker's device advances with its
    // start.)
    if (worker.worker_kind == WorkerKind::kContext && GenerationOf(worker) != 0) ++GenerationOf(worker);
    if (worker.worker_kind == WorkerKind::kMain && EntryOf(worker).dropped != 0) {
      for (const WorkerKind worker_kind : kWorkerKinds) {
        FindWorker(worker.record.ordinal, worker_kind)->supervision.OnNotStarted("the device was dropped");
      }
    }
  }
  return StartProcesses();
}

absl::Status Supervisor::ContinueRecord() {
  BERTH_ASSIGN_OR_RETURN(NodeRecord record, NodeRecord::Open(options_.folder));
  const absl::Status left = record.Check(folder_.node());
  if (left.ok()) {
    incarnation_ = record.incarnation();
    epoch_ = record.epoch();
    begun_ = lost_ = true;
    BERTH_ASSIGN_OR_RETURN(const bool pids_are_ours, record.PidsAreOurs());
    elsewhere_ = !pids_are_ours;
    record.ContinueDevices(&page_.writable());
    Log("resuming the leases of the previous daemon%s",
        elsewhere_ ? ", which ran in another PID namespace: the ends of its processes cannot be observed" : "");
  } else if (absl::IsFailedPrecondition(left)) {
    Log("no leases to resume: %s", std::string(left.message()).c_str());
  } else {
    // The record may be of a daemon whose leases still exist.
    return left;
  }
  record_.emplace(std::move(record));
  // The record's pids belong to the other namespace until a broker has marked the processes whose end it cannot
  // observe.
  return elsewhere_ ? absl::OkStatus() : record_->Begin(folder_.node(), incarnation_, begun_);
}

absl::Status Supervisor::OpenRecord() {
  BERTH_ASSIGN_OR_RETURN(NodeRecord record, NodeRecord::Open(options_.folder));
  record_.emplace(std::move(record));
  return elsewhere_ ? absl::OkStatus() : record_->Begin(folder_.node(), incarnation_, begun_);
}

void Supervisor::BeginRecord() {
  const absl::Status begun = record_->Begin(folder_.node(), incarnation_, begun_);
  if (!begun.ok())
    Log("cannot persist the node record: %s; the next daemon cannot resume these leases",
        std::string(begun.message()).c_str());
}

void Supervisor::OpenStore() {
  if (!HasServiceManager()) return;
  const auto stored = held_.find(KeyOf(Kind::kStoreRecord));
  const bool again = stored != held_.end();
  if (again) {
    absl::StatusOr<StoreRecord> record = StoreRecord::Map(stored->second.get());
    if (record.ok()) store_.emplace(*std::move(record), SendToServiceManager);
  } else {
    absl::StatusOr<std::pair<UniqueFd, StoreRecord>> made = StoreRecord::Create(folder_.node());
    if (made.ok()) {
      held_[KeyOf(Kind::kStoreRecord)] = std::move(made->first);
      store_.emplace(std::move(made->second), SendToServiceManager);
      store_->record().Begin(incarnation_);
      if (begun_) store_->record().SetServed();
    }
  }
  if (!store_.has_value()) return Log("no fds are stored with the service manager: the store record cannot be opened");
  store_->Reconcile(Now(), held_, again);
}

void Supervisor::AttendStore() {
  if (!store_.has_value()) return;
  for (const Key& key : store_->Attend(Now(), held_)) {
    // If another fd has replaced the key's (supervisor_folder.cc), the broker continues with the new one.
    if (broker_.has_value() && !held_.contains(key)) {
      broker_->link.Queue(KeyMessage{.kind = MessageKind::kDropped, .key = key});
    }
  }
}

void Supervisor::CloseRecord(bool over) {
  if (store_.has_value() && !over) {
    folder_.LeaveSockets();
  } else if (store_.has_value()) {
    // The manager holds the record longer than this process does.
    store_->record().End();
    HangUp(held_);
  }
  // The rest closes with the process: closing a client's socket may wait for what the client sent on it, exiting does
  // not.
  for (auto& [key, fd] : held_) fd.release();
}

}  // namespace berth
