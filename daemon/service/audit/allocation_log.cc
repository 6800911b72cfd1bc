#include "daemon/service/audit/allocation_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "berth/v1/memory.pb.h"
#include "common/os/nonblocking_write.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "daemon/base/named_fd.h"
#include "daemon/broker/needed_thread.h"
#include "daemon/broker/node_clock.h"
#include "daemon/service/audit/open_error.h"
#include "daemon/service/conversion/memory_conversion.h"
#include "google/protobuf/util/json_util.h"

namespace berth::service {
namespace {

absl::Status CannotOpen(const std::string& path, int error) {
  struct stat entry;
  const mode_t kind = ::stat(path.c_str(), &entry) == 0 ? entry.st_mode & S_IFMT : 0;
  const char* way_out = nullptr;
  if (error == EISDIR) way_out = " is a directory: name a file in it";
  if (error == ENXIO && kind == S_IFIFO) way_out = " is a FIFO without a reader: start its reader, or name a file";
  if (error == ENXIO && kind == S_IFSOCK) way_out = " is a socket: name a file";
  if (error == ENXIO && kind == S_IFCHR) way_out = " is a device that the daemon does not have: name a file";
  if (way_out == nullptr) return OpenError(absl::StrCat("log.file: ", path), path, error);
  return absl::FailedPreconditionError(absl::StrCat("log.file: ", path, way_out));
}

absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int inherited) {
  if (const std::optional<int> fd = FindNamedFd(path); fd.has_value()) {
    // The broker's other fds are its ledger and its sockets.
    const int output = *fd == STDOUT_FILENO || *fd == STDERR_FILENO ? *fd : inherited;
    if (output < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("log.file: ", path, " is not an output of the daemon: start it with that fd, or name a file"));
    }
    // A socket cannot be opened again.
    return DuplicateFd(output);
  }
  // A pipe without a reader is an error; a slow reader must not block the writer.
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  UniqueFd file(::open(path.c_str(), kFlags | O_NOFOLLOW, 0640));
  if (!file && errno == ELOOP) {
    // The operator may link to a log on another disk.
    struct stat link;
    if (::lstat(path.c_str(), &link) == 0 && link.st_uid != 0 && link.st_uid != ::geteuid()) {
      return absl::FailedPreconditionError(absl::StrCat("log.file: ", path, " is a symbolic link of user ", link.st_uid,
                                                        "'s: name its target, or make the link anew"));
    }
    file.reset(::open(path.c_str(), kFlags, 0640));
  }
  if (!file) return CannotOpen(path, errno);
  return file;
}

bool IsSameFile(int a, int b) {
  struct stat of_a, of_b;
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AllocationLog>> AllocationLog::Open(const std::optional<std::string>& path,
                                                                   uint64_t incarnation, int inherited) {
  UniqueFd file;
  if (path.has_value()) {
    BERTH_ASSIGN_OR_RETURN(file, OpenFile(*path, inherited));
  }
  return std::unique_ptr<AllocationLog>(new AllocationLog(path, std::move(file), incarnation, inherited));
}

std::unique_ptr<AllocationLog> AllocationLog::WithoutItsFile(const std::string& path, uint64_t incarnation) {
  return std::unique_ptr<AllocationLog>(new AllocationLog(path, UniqueFd(), incarnation, /*inherited=*/-1));
}

AllocationLog::AllocationLog(std::optional<std::string> path, UniqueFd file, uint64_t incarnation, int inherited)
    : path_(std::move(path)),
      inherited_(inherited),
      incarnation_(incarnation),
      operators_(::geteuid()),
      file_(std::move(file)) {
  if (path_.has_value()) writer_ = NeededThread("the log of memory", [this] { Write(); });
}

absl::Status AllocationLog::Reopen() {
  if (!path_.has_value()) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(*path_, inherited_));
  MutexLock lock(&file_mu_);
  torn_ = torn_ && IsSameFile(file.get(), file_.get());
  file_ = std::move(file);
  return absl::OkStatus();
}

AllocationLog::~AllocationLog() {
  if (!writer_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    more_.Signal();
  }
  writer_.join();
}

void AllocationLog::Append(core::LogRecord record) {
  record.time = NodeClock::Real().ToWall(record.time);
  MutexLock lock(&mu_);
  if (records_.size() == kMaxRecords) FreeCapacityLocked();
  records_.push_back(record);
  if (!path_.has_value()) return;
  if (!places_.Take(ShareOf(record))) {
    ++unwritten_;
    return;
  }
  waiting_.push_back(record);
  more_.Signal();
}

core::RingKey AllocationLog::ShareOf(const core::LogRecord& record) const {
  return core::RingKeyOf(record.tenant, operators_);
}

void AllocationLog::FreeCapacityLocked() {
  std::map<core::RingKey, uint64_t> held;
  for (const core::LogRecord& record : records_) ++held[ShareOf(record)];
  std::map<core::RingKey, uint64_t> excess;
  for (const auto& [share, limit] : core::LimitRing(kMaxRecords - kMaxRecords / 8, held))
    excess[share] = held[share] - limit;
  absl::Time last_evicted = complete_since_;
  std::erase_if(records_, [&](const core::LogRecord& record) {
    uint64_t& left = excess[ShareOf(record)];
    if (left == 0) return false;
    --left;
    last_evicted = std::max(last_evicted, record.time);
    return true;
  });
  complete_since_ = last_evicted;
}

core::RingReach AllocationLog::reach() const {
  MutexLock lock(&mu_);
  return {.oldest = records_.empty() ? absl::InfiniteFuture() : records_.front().time,
          .complete_since = complete_since_};
}

core::Page<core::LogRecord> AllocationLog::List(const core::Caller& caller,
                                                const core::PageRequest& request) const {
  core::Page<core::LogRecord> page;
  page.last = request.after;
  MutexLock lock(&mu_);
  auto next = std::upper_bound(records_.begin(), records_.end(), request.after,
                               [](uint64_t after, const core::LogRecord& record) { return after < record.number; });
  for (; next != records_.end(); ++next) {
    const core::LogRecord& record = *next;
    if (!caller.sees_all() && record.tenant != caller.tenant) continue;
    page.more = page.size() >= request.rows;
    if (page.more) break;
    page.last = record.number;
    page.push_back(record);
  }
  return page;
}

void AllocationLog::Flush(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  MutexLock lock(&mu_);
  while (!waiting_.empty() || writing_ > 0) {
    if (written_.WaitWithDeadline(&mu_, deadline)) return;
  }
}

uint64_t AllocationLog::unwritten() const {
  MutexLock lock(&mu_);
  return unwritten_;
}

void AllocationLog::Write() {
  std::deque<core::LogRecord> batch;
  while (true) {
    {
      MutexLock lock(&mu_);
      while (waiting_.empty() && !stop_) more_.Wait(&mu_);
      if (waiting_.empty()) return;
      batch.swap(waiting_);
      writing_ = batch.size();
    }
    uint64_t unwritten = 0;
    for (const core::LogRecord& record : batch) unwritten += WriteLine(record) ? 0 : 1;
    MutexLock lock(&mu_);
    for (const core::LogRecord& record : batch) places_.Return(ShareOf(record));
    batch.clear();
    writing_ = 0;
    unwritten_ += unwritten;
    written_.SignalAll();
  }
}

bool AllocationLog::WriteLine(const core::LogRecord& record) {
  v1::LogRecord message;
  ToProto(record, &message);
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return false;
  MutexLock lock(&file_mu_);
  if (!file_) return false;
  std::string line(torn_ ? 1 : 0, '\n');
  line += json + '\n';
  absl::string_view rest = line;
  int error = 0;
  while (!rest.empty()) {
    // Another user's terminal takes single bytes.
    const ssize_t written = WriteWithoutBlocking(file_.get(), rest.data(), rest.size());
    if (written <= 0) {
      error = written < 0 ? errno : 0;
      break;
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  if (rest.empty()) {
    torn_ = false;
    fault_.Report(*path_, absl::OkStatus());
    return true;
  }
  // A slow reader is no fault.
  if (error != 0 && error != EAGAIN) fault_.Report(*path_, OsError("write", error));
  // A full disk took a part of the line, which must not run into the next line.
  if (rest.size() < line.size()) torn_ = true;
  return false;
}

}  // namespace berth::service
