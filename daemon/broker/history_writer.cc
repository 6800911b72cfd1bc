#include "daemon/broker/history_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "daemon/broker/needed_thread.h"
#include "daemon/broker/node_clock.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/user_share.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// Time that the thread waits after the first record, to write later ones with it.
constexpr absl::Duration kGather = absl::Milliseconds(20);
// Pause before the next try on a disk that rejects writes.
constexpr absl::Duration kRetryPause = absl::Milliseconds(200);

bool IsUnreadable(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsFailedPrecondition(status);
}

// Returns the wall time at which the broker's clock, the boot clock, was zero.
absl::Time BootTime() { return NodeClock::Real().ToWall(absl::UnixEpoch()); }

// Converts the lease's times from the boot clock to wall time.
void ToWall(absl::Time boot, core::LeaseRecord* lease) {
  lease->granted_at = boot + (lease->granted_at - absl::UnixEpoch());
  if (lease->end != core::LeaseEnd::kNone) lease->ended_at = boot + (lease->ended_at - absl::UnixEpoch());
}

absl::Status Off() {
  return Refuse(Reason::kUnsupported, "{capability} is off: history.size is 0 in the daemon's configuration",
                {{"capability", "history"}});
}

}  // namespace

HistoryWriter::HistoryWriter(HistoryStore::Options options) : options_(std::move(options)) {
  if (options_.size != Bytes(0)) thread_ = NeededThread("the history", [this] { Run(); });
}

HistoryWriter::~HistoryWriter() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    more_.Signal();
  }
  thread_.join();
}

void HistoryWriter::Append(core::LeaseRecord record) {
  if (!thread_.joinable()) return;
  ToWall(BootTime(), &record);
  MutexLock lock(&mu_);
  if (!places_.Take(core::RingKeyOf(record.tenant, options_.operators))) {
    ++unwritten_;
    return;
  }
  waiting_.push_back(std::move(record));
  if (waiting_.size() == 1) more_.Signal();
}

void HistoryWriter::Resume(std::vector<core::LeaseRecord> out) {
  if (!thread_.joinable()) return;
  for (const absl::Time boot = BootTime(); core::LeaseRecord& lease : out) ToWall(boot, &lease);
  MutexLock lock(&mu_);
  begins_ = {.out = std::move(out), .after = waiting_.size()};
  more_.Signal();
}

void HistoryWriter::Query(HistoryQuery query, Answer answer) {
  if (!thread_.joinable()) return answer(Off());
  const bool of_all = !query.tenant.has_value();
  const uint32_t user = of_all ? 0 : core::UserOf(*query.tenant);
  uint64_t waiting = 0;
  uint64_t limit = kOperatorQueries;
  {
    MutexLock lock(&mu_);
    waiting = of_all ? operator_queries_.size() : user_queries_.CountOf(user);
    if (!of_all) limit = std::min<uint64_t>(kUserQueries, core::UserShare(kQueries, user_queries_.size() - waiting));
    if (waiting < limit) {
      Asked asked = {.query = std::move(query), .answer = std::move(answer)};
      if (of_all) {
        operator_queries_.push_back(std::move(asked));
      } else {
        user_queries_.Push(user, std::move(asked));
      }
      more_.Signal();
      return;
    }
  }
  answer(RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "{what}: {current}, limit {limit}",
                         {{"what", "queries_of_history"}, {"current", waiting}, {"limit", limit}}));
}

std::optional<HistoryWriter::Asked> HistoryWriter::TakeQuery() {
  if (operator_queries_.empty()) return user_queries_.Take();
  Asked asked = std::move(operator_queries_.front());
  operator_queries_.pop_front();
  return asked;
}

void HistoryWriter::Flush(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  MutexLock lock(&mu_);
  while (!waiting_.empty() || begins_.has_value() || (working_ && fault_.empty())) {
    if (idle_.WaitWithDeadline(&mu_, deadline)) return;
  }
}

uint64_t HistoryWriter::unwritten() const {
  MutexLock lock(&mu_);
  return unwritten_;
}

core::RingReach HistoryWriter::reach() const {
  MutexLock lock(&mu_);
  return reach_;
}

std::string HistoryWriter::fault() const {
  MutexLock lock(&mu_);
  return fault_;
}

void HistoryWriter::Run() {
  bool stop = false;
  absl::Status written;
  while (!stop) {
    bool asks = false;
    {
      MutexLock lock(&mu_);
      // The store is opened even without records to write, so that queries report any fault.
      const bool idle = written.ok() && store_ != nullptr;
      while (idle && waiting_.empty() && !begins_.has_value() && !HasQueries() && !stop_) more_.Wait(&mu_);
      asks = HasQueries();
    }
    // A wait with a deadline would last as long as a user sets the clock back, hence the sleep. A query does not wait
    // for further records.
    if (!written.ok()) {
      absl::SleepFor(kRetryPause);
    } else if (!asks) {
      absl::SleepFor(kGather);
    }
    std::optional<Asked> asked;
    {
      MutexLock lock(&mu_);
      stop = stop_;
      if (begins_.has_value()) {
        beginning_ = std::exchange(begins_, std::nullopt);
        beginning_->after += batch_.size();
      }
      batch_.insert(batch_.end(), std::make_move_iterator(waiting_.begin()), std::make_move_iterator(waiting_.end()));
      waiting_.clear();
      working_ = true;
      asked = TakeQuery();
    }
    written = Write();
    if (IsUnreadable(written)) {
      written = RenameUnreadable(written);
      if (written.ok()) written = Write();
    }
    // The history's files may have changed in any way: open them anew.
    if (absl::IsUnavailable(written)) store_.reset();
    const absl::StatusOr<core::RingReach> reach =
        store_ == nullptr ? absl::UnavailableError("not open") : store_->Reach();
    {
      MutexLock lock(&mu_);
      const std::string fault(written.message());
      if (fault != fault_ && !fault.empty()) spdlog::warn("history: {}; retrying", fault);
      if (fault.empty() && !fault_.empty()) spdlog::info("history: writes succeed again");
      fault_ = fault;
      if (reach.ok()) reach_ = *reach;
    }
    if (asked.has_value()) Serve(*asked);
    MutexLock lock(&mu_);
    working_ = false;
    idle_.SignalAll();
  }
}

absl::Status HistoryWriter::Open() {
  BERTH_ASSIGN_OR_RETURN(store_, HistoryStore::Open(options_));
  return absl::OkStatus();
}

absl::Status HistoryWriter::RenameUnreadable(const absl::Status& why) {
  store_.reset();
  const absl::Status renamed = HistoryStore::RenameUnreadable(options_.folder);
  if (!renamed.ok()) {
    return absl::InternalError(absl::StrCat(why.message(), "; cannot rename the unreadable file: ", renamed.message()));
  }
  spdlog::warn("history: {}; renaming it to {} and starting an empty one", std::string(why.message()),
               HistoryStore::kUnreadableName);
  return absl::OkStatus();
}

absl::Status HistoryWriter::Write() {
  if (store_ == nullptr) BERTH_RETURN_IF_ERROR(Open());
  if (beginning_.has_value()) {
    BERTH_RETURN_IF_ERROR(WriteRecords(beginning_->after));
    BERTH_RETURN_IF_ERROR(store_->Resume(beginning_->out));
    beginning_.reset();
  }
  return WriteRecords(batch_.size());
}

absl::Status HistoryWriter::WriteRecords(size_t count) {
  const std::vector<core::LeaseRecord> records(batch_.begin(), batch_.begin() + static_cast<ptrdiff_t>(count));
  size_t written = 0;
  absl::Status status = store_->Write(records, &written);
  {
    MutexLock lock(&mu_);
    for (size_t i = 0; i < written; ++i) places_.Return(core::RingKeyOf(records[i].tenant, options_.operators));
  }
  batch_.erase(batch_.begin(), batch_.begin() + static_cast<ptrdiff_t>(written));
  if (beginning_.has_value()) beginning_->after -= written;
  return status;
}

void HistoryWriter::Serve(const Asked& asked) {
  absl::StatusOr<Page> page = absl::InternalError(fault());
  if (store_ != nullptr) {
    page = store_->List(asked.query);
    if (IsUnreadable(page.status())) RenameUnreadable(page.status()).IgnoreError();
  }
  // The caller need not retry: the thread does.
  if (!page.ok()) page = absl::InternalError(absl::StrCat("cannot read the history: ", page.status().message()));
  asked.answer(std::move(page));
}

}  // namespace berth
