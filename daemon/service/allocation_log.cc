#include "daemon/service/allocation_log.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "berth/v1/resources.pb.h"
#include "common/os_error.h"
#include "common/steady_clock.h"
#include "daemon/broker/node_clock.h"
#include "daemon/service/memory_conversion.h"
#include "google/protobuf/util/json_util.h"

namespace berth::service {

absl::StatusOr<std::unique_ptr<AllocationLog>> AllocationLog::Open(const std::optional<std::string>& path,
                                                                   uint64_t incarnation) {
  UniqueFd file;
  if (path.has_value()) {
    // A pipe without a reader is an error, and one whose reader is slow is not waited for.
    constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    file = UniqueFd(::open(path->c_str(), kFlags, 0640));
    if (!file) return OsError(*path, errno);
  }
  return std::unique_ptr<AllocationLog>(new AllocationLog(std::move(file), incarnation, /*lacks_file=*/false));
}

std::unique_ptr<AllocationLog> AllocationLog::WithoutItsFile(uint64_t incarnation) {
  return std::unique_ptr<AllocationLog>(new AllocationLog(UniqueFd(), incarnation, /*lacks_file=*/true));
}

AllocationLog::AllocationLog(UniqueFd file, uint64_t incarnation, bool lacks_file)
    : file_(std::move(file)), incarnation_(incarnation), lacks_file_(lacks_file) {
  if (file_) writer_ = std::thread([this] { Write(); });
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
  if (kept_.size() == kKept) kept_.pop_front();
  kept_.push_back(record);
  if (lacks_file_) ++unwritten_;
  if (!file_) return;
  if (waiting_.size() == kWaiting) {
    ++unwritten_;
    return;
  }
  waiting_.push_back(record);
  more_.Signal();
}

core::Page<core::LogRecord> AllocationLog::List(const core::Caller& caller,
                                                const core::PageRequest& request) const {
  core::Page<core::LogRecord> page;
  page.last = request.after;
  MutexLock lock(&mu_);
  const uint64_t first = kept_.empty() ? 1 : kept_.front().number;
  for (uint64_t at = request.after < first ? 0 : request.after - first + 1; at < kept_.size(); ++at) {
    const core::LogRecord& record = kept_[at];
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
  // A pipe whose reader has gone is an error of this file's, not of the process.
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
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
    batch.clear();
    MutexLock lock(&mu_);
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
  std::string line(torn_ ? 1 : 0, '\n');
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return false;
  line += json + '\n';
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    torn_ = false;
    return true;
  }
  // A full disk took half a line, which must not run into the next.
  if (written > 0) torn_ = true;
  return false;
}

}  // namespace berth::service
