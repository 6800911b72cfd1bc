#include "daemon/service/audit_log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/error.h"
#include "common/steady_clock.h"
#include "nlohmann/json.hpp"

namespace berth::service {
namespace {

using Json = nlohmann::ordered_json;

// The writer wakes up for the first of a crowd, and takes what has come in this time with it: a decision costs its
// maker no more than a place in the queue.
constexpr absl::Duration kGather = absl::Milliseconds(20);

std::string Hex(uint64_t id) { return absl::StrFormat("%016x", id); }

const char* RoleOf(const core::Caller& caller) {
  return caller.admin ? "admin" : caller.observer ? "observer" : "tenant";
}

}  // namespace

AuditLog::AuditLog(Options options) : options_(std::move(options)) {
  if (options_.size == Bytes(0)) return;
  // Tried again with each line, where it cannot be had.
  Prepare(0);
  writer_ = std::thread([this] { Write(); });
}

AuditLog::~AuditLog() {
  if (!writer_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    more_.Signal();
  }
  writer_.join();
}

void AuditLog::Append(AuditRecord record) {
  if (!writer_.joinable()) return;
  MutexLock lock(&mu_);
  AppendLocked(std::move(record));
}

void AuditLog::AppendRefusal(uint32_t uid, absl::Time now, absl::FunctionRef<AuditRecord()> make) {
  if (!writer_.joinable()) return;
  uint64_t left_out = 0;
  {
    MutexLock lock(&mu_);
    if (!refusals_.Of(now, uid).Take(now, 1)) {
      ++left_out_;
      return;
    }
    left_out = std::exchange(left_out_, 0);
  }
  AuditRecord record = make();
  if (left_out > 0) record.facts.emplace_back("left_out", absl::StrCat(left_out));
  Append(std::move(record));
}

void AuditLog::AppendLocked(AuditRecord record) {
  const uint64_t number = ++last_number_;
  if (waiting_.size() + writing_ >= kWaiting) {
    ++unwritten_;
    return;
  }
  if (record.who == nullptr) {
    const auto process = processes_.find(record.caller.credentials.channel);
    if (process != processes_.end()) record.who = process->second.who;
  }
  // No secret goes further than this.
  record.caller.credentials.secret = Secret();
  const auto label = labels_.find(record.caller.credentials.session);
  waiting_.push_back({.number = number,
                      .time = absl::Now(),
                      .record = std::move(record),
                      .label = label == labels_.end() ? "" : label->second});
  if (waiting_.size() == 1) more_.Signal();
}

void AuditLog::NoteSession(SessionId session, std::string label) {
  MutexLock lock(&mu_);
  labels_[session] = std::move(label);
}

void AuditLog::NoteProcess(SessionId session, ChannelId channel, std::shared_ptr<const AuditWho> who) {
  MutexLock lock(&mu_);
  processes_[channel] = {.session = session, .who = std::move(who)};
}

bool AuditLog::Knows(SessionId session, ChannelId channel) const {
  MutexLock lock(&mu_);
  const auto process = processes_.find(channel);
  return process != processes_.end() && process->second.session == session;
}

void AuditLog::EndSession(SessionId session) {
  MutexLock lock(&mu_);
  if (writer_.joinable()) {
    AppendLocked({.what = "session_over", .caller = {.credentials = {.session = session}}});
  }
  labels_.erase(session);
}

void AuditLog::EndProcess(ChannelId channel) {
  MutexLock lock(&mu_);
  if (writer_.joinable()) {
    AppendLocked({.what = "process_over", .caller = {.credentials = {.channel = channel}}});
  }
  processes_.erase(channel);
}

void AuditLog::Flush(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  MutexLock lock(&mu_);
  flushing_ = true;
  more_.Signal();
  while (!waiting_.empty() || writing_ > 0) {
    if (written_.WaitWithDeadline(&mu_, deadline)) break;
  }
  flushing_ = false;
}

uint64_t AuditLog::unwritten() const {
  MutexLock lock(&mu_);
  return unwritten_;
}

void AuditLog::Write() {
  std::vector<Line> batch;
  while (true) {
    bool gather = false;
    {
      MutexLock lock(&mu_);
      while (waiting_.empty() && !stop_) more_.Wait(&mu_);
      if (waiting_.empty()) return;
      gather = !stop_ && !flushing_ && waiting_.size() < kWaiting / 2;
    }
    // Not a wait until a time: that would last for as long as somebody sets the clock back.
    if (gather) absl::SleepFor(kGather);
    {
      MutexLock lock(&mu_);
      batch.swap(waiting_);
      writing_ = batch.size();
    }
    const uint64_t unwritten = WriteBatch(batch);
    batch.clear();
    MutexLock lock(&mu_);
    writing_ = 0;
    unwritten_ += unwritten;
    written_.SignalAll();
  }
}

std::string AuditLog::Format(const Line& line) const {
  const AuditRecord& record = line.record;
  const Credentials& credentials = record.caller.credentials;
  Json json;
  json["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", line.time, absl::UTCTimeZone());
  json["number"] = line.number;
  json["incarnation"] = Hex(options_.incarnation);
  json["epoch"] = options_.epoch;
  json["what"] = record.what;
  json["outcome"] = record.outcome.ok() ? "done" : "refused";
  if (!record.outcome.ok()) {
    const auto details = GetErrorDetails(record.outcome);
    json["reason"] = details.has_value() ? std::string(ReasonName(details->reason))
                                         : absl::StatusCodeToString(record.outcome.code());
    json["why"] = std::string(record.outcome.message());
  }
  for (const auto& [name, value] : record.facts) {
    // One that is said several times is a list.
    Json& fact = json[name];
    if (fact.is_null()) {
      fact = value;
    } else {
      if (!fact.is_array()) fact = Json::array({fact});
      fact.push_back(value);
    }
  }
  Json who;
  const bool asked = credentials.session || credentials.channel || record.who != nullptr || record.caller.observer;
  if (asked) who["role"] = RoleOf(record.caller);
  if (credentials.session) who["session"] = Hex(credentials.session.value());
  if (!line.label.empty()) who["label"] = line.label;
  if (credentials.channel) who["channel"] = Hex(credentials.channel.value());
  if (!record.caller.tenant.container.empty()) who["container"] = record.caller.tenant.container;
  if (record.who != nullptr) {
    const core::ProcessInfo& process = record.who->process;
    const ProcessOrigin& origin = record.who->origin;
    who["uid"] = process.uid;
    who["gid"] = process.gid;
    who["pid"] = process.pid;
    who["name"] = process.name;
    who["started"] = origin.started;
    who["cgroup"] = origin.cgroup;
    who["executable"] = origin.executable;
  } else if (credentials.session || record.caller.observer) {
    who["uid"] = record.caller.tenant.uid;
  }
  json["who"] = who.is_null() ? Json("daemon") : std::move(who);
  // Paths and labels of programs may be no UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

uint64_t AuditLog::WriteBatch(const std::vector<Line>& batch) {
  uint64_t unwritten = 0;
  for (const Line& line : batch) {
    std::string text = Format(line);
    if (torn_) text.insert(0, 1, '\n');
    if (!Prepare(text.size())) {
      ++unwritten;
      continue;
    }
    const ssize_t written = ::write(file_.get(), text.data(), text.size());
    if (written > 0) file_size_ += static_cast<uint64_t>(written);
    if (written == static_cast<ssize_t>(text.size())) {
      torn_ = false;
      continue;
    }
    // A full disk took half a line, which must not run into the next.
    torn_ = torn_ || written > 0;
    ++unwritten;
  }
  return unwritten;
}

bool AuditLog::Prepare(size_t size) {
  if (file_ && file_size_ > 0 && file_size_ + size > options_.size.count() / kFiles) Rotate();
  if (file_) return true;
  if (::mkdir(options_.folder.c_str(), 0700) < 0 && errno != EEXIST) return false;
  // What is there and is no file is not waited for.
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK;
  file_ = UniqueFd(::open(PathOf(0).c_str(), kFlags, 0600));
  struct stat info;
  if (!file_ || ::fstat(file_.get(), &info) < 0) return false;
  file_size_ = static_cast<uint64_t>(info.st_size);
  torn_ = false;
  return true;
}

void AuditLog::Rotate() {
  file_.reset();
  for (int turn = kFiles - 2; turn >= 0; --turn) ::rename(PathOf(turn).c_str(), PathOf(turn + 1).c_str());
}

std::string AuditLog::PathOf(int turn) const {
  return absl::StrCat(options_.folder, turn == 0 ? "/audit.jsonl" : absl::StrCat("/audit.", turn, ".jsonl"));
}

}  // namespace berth::service
