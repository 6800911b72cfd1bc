// The vault's part that has to do with what the service manager keeps: beginning of it, and keeping it what it shall.

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/vault/service_manager.h"
#include "daemon/vault/vault.h"
#include "daemon/vault/vault_log.h"

namespace berth {
namespace {

using custody::Key;
using custody::KeyMessage;
using custody::KeyOf;
using custody::Kind;
using custody::MessageKind;

// Whoever has the other end hears a hang-up, whoever has a duplicate of this one.
void HangUp(const HeldFds& held) {
  for (const auto& [key, fd] : held) {
    if (key.kind == Kind::kLifeline || key.kind == Kind::kChannel) ::shutdown(fd.get(), SHUT_RDWR);
  }
}

}  // namespace

absl::Status Vault::Begin(const VaultOptions& options, rlim_t fds, UniqueFd signals, UniqueFd ready) {
  HeldFds kept = FdStore::Sort(TakeHandedOver(), SendToServiceManager);
  UniqueFd lock;
  if (auto found = kept.extract(KeyOf(Kind::kFolderLock))) lock = std::move(found.mapped());
  const bool locked = static_cast<bool>(lock);
  BERTH_ASSIGN_OR_RETURN(RunFolder folder,
                         RunFolder::Take(options.folder, options.observers.has_value(), std::move(lock)));
  absl::StatusOr<StoreRecord> record = FindRecord(kept, folder.node());
  if (record.ok()) {
    BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapWritable(kept.at(KeyOf(Kind::kStatePage)).get()));
    Vault vault(options, std::move(folder), std::move(signals), std::move(page), fds);
    vault.ready_ = std::move(ready);
    vault.DivideCgroup();
    const absl::Status resumed = vault.Resume(std::move(kept), *std::move(record));
    if (resumed.ok()) return vault.ServeAndStop();
    vault.Stop();
    vault.CloseBooks(/*over=*/false);
    return resumed;
  }
  if (!kept.empty()) {
    Log("what the service manager kept ends: %s", std::string(record.status().message()).c_str());
    HangUp(kept);
    FdStore::Forget(kept, SendToServiceManager);
    kept.clear();
  }
  if (locked) SendToServiceManager(FdStore::RemovalOf(KeyOf(Kind::kFolderLock))).IgnoreError();
  BERTH_ASSIGN_OR_RETURN(UniqueFd page_fd, CreateStatePage());
  BERTH_ASSIGN_OR_RETURN(StatePage page, StatePage::MapWritable(page_fd.get()));
  Vault vault(options, std::move(folder), std::move(signals), std::move(page), fds);
  vault.ready_ = std::move(ready);
  vault.DivideCgroup();
  const absl::Status started = vault.Start(std::move(page_fd));
  if (started.ok()) return vault.ServeAndStop();
  vault.Stop();
  vault.CloseBooks(/*over=*/true);
  return absl::IsCancelled(started) ? absl::OkStatus() : started;
}

absl::StatusOr<StoreRecord> Vault::FindRecord(const HeldFds& kept, uint64_t node) {
  const auto found = kept.find(KeyOf(Kind::kStoreRecord));
  if (found == kept.end()) return absl::FailedPreconditionError("there is no record of whose it is");
  BERTH_ASSIGN_OR_RETURN(StoreRecord record, StoreRecord::Map(found->second.get()));
  BERTH_RETURN_IF_ERROR(record.Check(node));
  for (const Key& key : {KeyOf(Kind::kStatePage), KeyOf(Kind::kDeviceTable), KeyOf(custody::Listener::kBerthd),
                         KeyOf(custody::Listener::kAdmin), KeyOf(custody::Listener::kAttach),
                         KeyOf(custody::Listener::kObserver), KeyOf(custody::Listener::kAdminAttach)}) {
    if (!kept.contains(key)) {
      return absl::FailedPreconditionError(absl::StrCat("there is no ", FdStore::NameOf(key)));
    }
  }
  BERTH_ASSIGN_OR_RETURN(const StatePage page, StatePage::MapReadOnly(kept.at(KeyOf(Kind::kStatePage)).get()));
  if (page->incarnation != record.incarnation()) {
    return absl::FailedPreconditionError("its pages are of another incarnation");
  }
  BERTH_RETURN_IF_ERROR(ReadRecords(kept.at(KeyOf(Kind::kDeviceTable)).get()).status());
  return record;
}

absl::Status Vault::Resume(HeldFds kept, StoreRecord record) {
  incarnation_ = record.incarnation();
  begun_ = lost_ = true;
  epoch_ = page_->epoch;
  folder_.KeepSockets();
  held_ = std::move(kept);
  Log("vault and broker have died at once: %zu fds of theirs are gone on with", held_.size());
  store_.emplace(std::move(record), SendToServiceManager);
  store_->NoteKept(held_);
  BERTH_ASSIGN_OR_RETURN(held_[KeyOf(Kind::kFolderLock)], folder_.ShareLock());
  store_->Reconcile(Now(), held_, /*again=*/false);
  page_.writable().upgrading = 0;
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceRecord> records,
                         ReadRecords(held_.at(KeyOf(Kind::kDeviceTable)).get()));
  ListWorkers(records);
  for (Worker& worker : workers_) {
    // What an earlier one has made went with it. (That of a main worker's device moves with its start.)
    if (worker.lane == Lane::kContext && GenerationOf(worker) != 0) ++GenerationOf(worker);
    if (worker.lane == Lane::kMain && WordsOf(worker).dropped != 0) {
      for (const Lane lane : kLanes) {
        FindWorker(worker.record.ordinal, lane)->supervision.OnNotStarted("the device was dropped");
      }
    }
  }
  return StartProcesses();
}

void Vault::OpenStore() {
  if (!HasServiceManager()) return;
  const auto kept = held_.find(KeyOf(Kind::kStoreRecord));
  const bool again = kept != held_.end();
  if (again) {
    absl::StatusOr<StoreRecord> record = StoreRecord::Map(kept->second.get());
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
  if (!store_.has_value()) return Log("the service manager keeps nothing: there is no record");
  store_->Reconcile(Now(), held_, again);
}

void Vault::AttendStore() {
  if (!store_.has_value()) return;
  for (const Key& key : store_->Attend(Now(), held_)) {
    if (broker_.has_value()) broker_->link.Queue(KeyMessage{.kind = MessageKind::kDropped, .key = key});
  }
}

void Vault::CloseBooks(bool over) {
  if (store_.has_value() && !over) {
    folder_.LeaveSockets();
  } else if (store_.has_value()) {
    // The manager has it longer than this process.
    store_->record().End();
    HangUp(held_);
  }
  // The rest ends with the process: closing a client's socket may wait for what the client sent on it, ending does not.
  for (auto& [key, fd] : held_) fd.release();
}

}  // namespace berth
