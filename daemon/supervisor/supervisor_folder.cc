// The supervisor's part for its run folder. Whatever deletes the folder or its files, the running daemon continues,
// stays reachable, and excludes a second daemon.

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {

using fd_store::Key;
using fd_store::KeyOf;
using fd_store::Kind;

absl::Status Supervisor::HoldFolder() {
  BERTH_ASSIGN_OR_RETURN(held_[KeyOf(Kind::kFolderLock)], folder_.ShareLock());
  if (folder_.claimed()) {
    BERTH_ASSIGN_OR_RETURN(held_[KeyOf(Kind::kFolderClaim)], folder_.ShareClaim());
  }
  if (folder_.node_claimed()) {
    BERTH_ASSIGN_OR_RETURN(held_[KeyOf(Kind::kFolderClaim, fd_store::kNodeClaim)], folder_.ShareNodeClaim());
  }
  return absl::OkStatus();
}

void Supervisor::AttendFolder(bool changed) {
  if (!changed && Now() < folder_watch_.due()) return;
  folder_watch_.BeginLook();
  RunFolder::Restored restored;
  absl::Status status = folder_.Restore(options_.groups, &restored);
  if (restored.folder) {
    // The watch missed every change in the new folder until now.
    folder_watch_.BeginLook();
    if (status.ok()) status = folder_.Restore(options_.groups, &restored);
  }
  if (restored.lock) status.Update(HoldNewLock());
  std::vector<std::string> names;
  if (restored.folder) names.push_back("the folder");
  if (restored.lock) names.push_back("berthd.lock");
  if (restored.node) names.push_back("node");
  for (RunFolder::Listening& socket : restored.sockets) {
    names.push_back(RunFolder::NameOf(socket.listener));
    Replace(KeyOf(socket.listener), std::move(socket.fd));
  }
  if (status.ok() && record_.has_value()) {
    const absl::StatusOr<bool> repaired = record_->Repair();
    if (repaired.value_or(false)) names.push_back(NodeRecord::kName);
    status = repaired.status();
  }
  if (!names.empty()) {
    Log("folder %s: recreated deleted or replaced entries: %s; leases and connections continue",
        options_.folder.c_str(), absl::StrJoin(names, ", ").c_str());
  }
  LogFolderFault(std::string(status.message()));
  folder_watch_.EndLook(Now(), status.ok());
  if (broker_.has_value()) broker_->link.Queue(fd_store::Signal{.kind = fd_store::MessageKind::kFolderChanged});
}

void Supervisor::RestoreRecords() {
  if (folder_.IsForeign()) return;
  absl::Status status = folder_.RestoreNode().status();
  status.Update(record_->Repair().status());
  if (status.ok()) return;
  Log("cannot persist the node record: %s; the next daemon cannot resume these leases",
      std::string(status.message()).c_str());
}

absl::Status Supervisor::HoldNewLock() {
  BERTH_ASSIGN_OR_RETURN(UniqueFd lock, folder_.ShareLock());
  Replace(KeyOf(Kind::kFolderLock), std::move(lock));
  return absl::OkStatus();
}

void Supervisor::LogFolderFault(const std::string& fault) {
  if (fault == std::exchange(folder_fault_, fault) || fault.empty()) return;
  Log("folder %s is incomplete: %s; clients may not reach this daemon (pid %d); retrying every second",
      options_.folder.c_str(), fault.c_str(), ::getpid());
}

void Supervisor::Replace(Key key, UniqueFd fd) {
  held_[key] = std::move(fd);
  if (broker_.has_value()) broker_->link.QueueGive(key);
  if (!store_.has_value()) return;
  // The service manager would store both fds under one name.
  store_->Drop(Now(), key);
  store_->Put(Now(), key);
}

}  // namespace berth
