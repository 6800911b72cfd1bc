#include "daemon/service/audit/audit_log.h"

#include <array>
#include <utility>

#include <berth/error.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/os/process.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "daemon/broker/needed_thread.h"
#include "daemon/service/audit/audit_facts.h"
#include "daemon/service/audit/audit_who.h"
#include "nlohmann/json.hpp"

namespace berth::service {
namespace {

using Json = nlohmann::ordered_json;

// The writer wakes for the first record of a burst, and takes with it the records of this interval. A decision costs
// its caller no more than a place in the queue.
constexpr absl::Duration kGather = absl::Milliseconds(20);

const char* RoleOf(const core::Caller& caller) {
  return caller.admin ? "admin" : caller.observer ? "observer" : "tenant";
}

// Names of records about users' sessions, processes and connections that start and end.
constexpr std::array<absl::string_view, 6> kAdmissions = {"connect",      "open_session", "join_session",
                                                          "session_over", "process_over", "end_connection"};

core::RingKey ShareOf(const AuditRecord& record) {
  const core::Caller& caller = record.caller;
  const bool asked =
      caller.credentials.session || caller.credentials.channel || record.who != nullptr || caller.observer;
  if (caller.admin || !asked) return {.part = core::RingPart::kOperators};
  const bool admission = absl::c_linear_search(kAdmissions, absl::string_view(record.what));
  return {.part = admission ? core::RingPart::kAdmission : core::RingPart::kUsers,
          .account = core::UserOf(caller.tenant)};
}

}  // namespace

AuditLog::AuditLog(Options options) : options_(std::move(options)), files_(options_.folder, options_.size) {
  if (options_.size == Bytes(0)) return;
  // If the file cannot be opened, each line retries.
  core::RingReach reach;
  {
    MutexLock lock(&files_mu_);
    files_.Open();
    reach = files_.reach();
  }
  {
    MutexLock lock(&mu_);
    reach_ = reach;
  }
  writer_ = NeededThread("the audit log", [this] { Write(); });
}

AuditLog::~AuditLog() {
  if (!writer_.joinable()) return;
  {
    MutexLock lock(&mu_);
    SayLeftOutLocked();
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

void AuditLog::AppendRefusal(const core::Tenant& tenant, absl::Time now, absl::FunctionRef<AuditRecord()> make) {
  if (!writer_.joinable()) return;
  {
    MutexLock lock(&mu_);
    const uint32_t account = core::UserOf(tenant);
    if (!refusals_.Of(now, account).Take(now, 1)) return LeaveOutLocked(account, SteadyNow());
  }
  AuditRecord record = make();
  MutexLock lock(&mu_);
  const core::RingKey share = ShareOf(record);
  PushLocked(std::move(record), "", share);
}

void AuditLog::AppendLocked(AuditRecord record) {
  if (record.who == nullptr) {
    const auto process = processes_.find(record.caller.credentials.channel);
    if (process != processes_.end()) record.who = process->second.who;
  }
  const core::RingKey share = ShareOf(record);
  if (!record.outcome.ok() && share.part != core::RingPart::kOperators) {
    const absl::Time now = SteadyNow();
    if (!session_refusals_.Of(now, share.account).Take(now, 1)) return LeaveOutLocked(share.account, now);
  }
  const auto session = sessions_.find(record.caller.credentials.session);
  PushLocked(std::move(record), session == sessions_.end() ? "" : session->second.label, share);
}

void AuditLog::PushLocked(AuditRecord record, std::string label, const core::RingKey& share) {
  const uint64_t number = ++last_number_;
  if (!places_.Take(share)) {
    ++unwritten_;
    return;
  }
  // The secret goes no further than this.
  record.caller.credentials.secret = Secret();
  waiting_.push_back({.number = number,
                      .time = absl::Now(),
                      .record = std::move(record),
                      .label = std::move(label),
                      .share = share});
  if (waiting_.size() == 1) more_.Signal();
}

void AuditLog::LeaveOutLocked(uint32_t account, absl::Time now) {
  ++left_out_[account];
  if (left_out_due_ != absl::InfiniteFuture()) return;
  left_out_due_ = now + kCountFor;
  more_.Signal();
}

void AuditLog::SayLeftOutLocked() {
  for (const auto& [account, count] : std::exchange(left_out_, {})) {
    PushLocked({.what = "left_out", .facts = {{"account", absl::StrCat(account)}, {"left_out", absl::StrCat(count)}}},
               "", {.account = account});
  }
  left_out_due_ = absl::InfiniteFuture();
}

void AuditLog::RecordSession(SessionId session, std::string label, const core::Tenant& tenant, bool of_operator) {
  MutexLock lock(&mu_);
  sessions_[session] = {.label = std::move(label), .tenant = tenant, .of_operator = of_operator};
}

void AuditLog::RecordProcess(SessionId session, ChannelId channel, std::shared_ptr<const AuditWho> who) {
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
    const RecordedSession& noted = sessions_[session];
    AppendLocked({.what = "session_over",
                  .caller = {.credentials = {.session = session}, .tenant = noted.tenant, .admin = noted.of_operator}});
  }
  sessions_.erase(session);
}

void AuditLog::EndProcess(ChannelId channel) {
  MutexLock lock(&mu_);
  if (writer_.joinable()) {
    AuditRecord record = {.what = "process_over", .caller = {.credentials = {.channel = channel}}};
    const auto process = processes_.find(channel);
    const auto noted = process == processes_.end() ? sessions_.end() : sessions_.find(process->second.session);
    if (noted != sessions_.end()) {
      record.caller.tenant = noted->second.tenant;
      record.caller.admin = noted->second.of_operator;
    }
    AppendLocked(std::move(record));
  }
  processes_.erase(channel);
}

void AuditLog::Flush(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  MutexLock lock(&mu_);
  SayLeftOutLocked();
  flushing_ = true;
  more_.Signal();
  while (!waiting_.empty() || writing_ > 0) {
    if (written_.WaitWithDeadline(&mu_, deadline)) break;
  }
  flushing_ = false;
}

absl::Status AuditLog::Reopen() {
  if (!writer_.joinable()) return absl::OkStatus();
  core::RingReach reach;
  {
    MutexLock lock(&files_mu_);
    BERTH_RETURN_IF_ERROR(files_.Reopen());
    reach = files_.reach();
  }
  MutexLock lock(&mu_);
  reach_ = reach;
  return absl::OkStatus();
}

core::RingReach AuditLog::reach() const {
  MutexLock lock(&mu_);
  return reach_;
}

uint64_t AuditLog::unwritten() const {
  MutexLock lock(&mu_);
  return unwritten_;
}

bool AuditLog::AwaitLinesLocked() {
  while (waiting_.empty() && !stop_) {
    if (more_.WaitWithDeadline(&mu_, left_out_due_)) SayLeftOutLocked();
  }
  if (left_out_due_ <= SteadyNow()) SayLeftOutLocked();
  return !waiting_.empty();
}

void AuditLog::Write() {
  std::vector<Line> batch;
  while (true) {
    bool gather = false;
    {
      MutexLock lock(&mu_);
      if (!AwaitLinesLocked()) return;
      gather = !stop_ && !flushing_ && waiting_.size() < kWaiting / 2;
    }
    // A relative sleep: a wait for an absolute time grows when the clock is set back.
    if (gather) absl::SleepFor(kGather);
    {
      MutexLock lock(&mu_);
      batch.swap(waiting_);
      writing_ = batch.size();
    }
    uint64_t unwritten = 0;
    core::RingReach reach;
    for (const Line& line : batch) {
      const std::string text = Format(line);
      MutexLock lock(&files_mu_);
      unwritten += files_.Write(text) ? 0 : 1;
      reach = files_.reach();
    }
    MutexLock lock(&mu_);
    for (const Line& line : batch) places_.Return(line.share);
    batch.clear();
    writing_ = 0;
    unwritten_ += unwritten;
    reach_ = reach;
    written_.SignalAll();
  }
}

std::string AuditLog::Format(const Line& line) const {
  const AuditRecord& record = line.record;
  const Credentials& credentials = record.caller.credentials;
  Json json;
  json["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", line.time, absl::UTCTimeZone());
  json["number"] = line.number;
  json["incarnation"] = absl::StrCat(options_.incarnation);
  json["epoch"] = options_.epoch;
  json["share"] = FormatShare(line.share);
  json["what"] = record.what;
  json["outcome"] = record.outcome.ok() ? "done" : "refused";
  if (!record.outcome.ok()) {
    const auto details = GetErrorDetails(record.outcome);
    json["reason"] = details.has_value() ? std::string(ReasonName(details->reason))
                                         : absl::StatusCodeToString(record.outcome.code());
    json["why"] = std::string(record.outcome.message());
  }
  for (const auto& [name, value] : record.facts) {
    // A fact that occurs several times becomes a list.
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
  if (credentials.session) who["session"] = absl::StrCat(credentials.session.value());
  if (!line.label.empty()) who["label"] = line.label;
  if (credentials.channel) who["channel"] = absl::StrCat(credentials.channel.value());
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
  // Paths and labels of programs may be invalid UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

// ---- audit_facts.h -------------------------------------------------------------------------------------------

void AddLabel(const std::string& label, AuditFacts* facts) {
  if (!label.empty()) facts->emplace_back("request_label", label);
}

void AddItems(const std::vector<core::ReserveItem>& items, AuditFacts* facts) {
  if (items.empty()) return;
  facts->emplace_back(
      "reserve", absl::StrJoin(items, ", ", [](std::string* out, const core::ReserveItem& item) {
        absl::StrAppend(out, item.bytes.count(), " on ",
                        item.device_uuid.empty() ? absl::StrCat(item.device) : item.device_uuid);
      }));
}

std::string OwnerOf(const core::Tenant& tenant) {
  return absl::StrCat("uid ", tenant.uid, tenant.container.empty() ? "" : " in ", tenant.container);
}

// ---- audit_who.h ---------------------------------------------------------------------------------------------

std::shared_ptr<const AuditWho> ReadWho(const core::ProcessInfo& process, const absl::StatusOr<UniqueFd>& pidfd) {
  AuditWho who = {.process = process};
  if (pidfd.ok()) who.origin = ReadOrigin(process.pid);
  // If the process lives now, the data read before is its own.
  if (pidfd.ok() && IsGone(pidfd->get())) who.origin = ProcessOrigin();
  return std::make_shared<const AuditWho>(std::move(who));
}

}  // namespace berth::service
