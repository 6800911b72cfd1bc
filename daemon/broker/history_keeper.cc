#include "daemon/broker/history_keeper.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "daemon/broker/node_clock.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// The thread wakes up for the first of a crowd, and takes what has come in this time with it.
constexpr absl::Duration kGather = absl::Milliseconds(20);
// Between two tries on a disk that does not take it.
constexpr absl::Duration kRetryPause = absl::Milliseconds(200);

bool IsUnreadable(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsFailedPrecondition(status);
}

// When the broker's clock, which is the boot's, was zero on the wall.
absl::Time BootTime() { return NodeClock::Real().ToWall(absl::UnixEpoch()); }

// From that clock to the wall's.
void ToWall(absl::Time boot, core::LeaseRecord* lease) {
  lease->granted_at = boot + (lease->granted_at - absl::UnixEpoch());
  if (lease->end != core::LeaseEnd::kNone) lease->ended_at = boot + (lease->ended_at - absl::UnixEpoch());
}

absl::Status Off() {
  return Refuse(Reason::kUnsupported, "{capability} is not kept: history.size is 0 in the daemon's configuration",
                {{"capability", "history"}});
}

}  // namespace

HistoryKeeper::HistoryKeeper(HistoryStore::Options options) : options_(std::move(options)) {
  if (options_.size != Bytes(0)) thread_ = std::thread([this] { Run(); });
}

HistoryKeeper::~HistoryKeeper() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    more_.Signal();
  }
  thread_.join();
}

void HistoryKeeper::Append(core::LeaseRecord record) {
  if (!thread_.joinable()) return;
  ToWall(BootTime(), &record);
  MutexLock lock(&mu_);
  if (waiting_.size() + writing_ >= kWaiting) {
    ++unwritten_;
    return;
  }
  waiting_.push_back(std::move(record));
  if (waiting_.size() == 1) more_.Signal();
}

void HistoryKeeper::Resume(std::vector<core::LeaseRecord> out) {
  if (!thread_.joinable()) return;
  for (const absl::Time boot = BootTime(); core::LeaseRecord& lease : out) ToWall(boot, &lease);
  MutexLock lock(&mu_);
  begins_ = {.out = std::move(out), .after = waiting_.size()};
  more_.Signal();
}

void HistoryKeeper::Query(HistoryQuery query, Answer answer) {
  if (!thread_.joinable()) return answer(Off());
  const bool first = !query.tenant.has_value();
  size_t waiting = 0;
  size_t limit = kQueries;
  {
    MutexLock lock(&mu_);
    waiting = queries_.size();
    if (!first && waiting < limit) {
      limit = kTenantQueries;
      waiting = static_cast<size_t>(std::count_if(queries_.begin(), queries_.end(), [&](const Asked& asked) {
        return asked.query.tenant == query.tenant;
      }));
    }
    if (waiting < limit) {
      Asked asked = {.query = std::move(query), .answer = std::move(answer)};
      queries_.insert(first ? queries_.begin() : queries_.end(), std::move(asked));
      more_.Signal();
      return;
    }
  }
  answer(RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "{what}: {current}, limit {limit}",
                         {{"what", "queries_of_history"}, {"current", waiting}, {"limit", limit}}));
}

void HistoryKeeper::Flush(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  MutexLock lock(&mu_);
  while (!waiting_.empty() || begins_.has_value() || (working_ && fault_.empty())) {
    if (idle_.WaitWithDeadline(&mu_, deadline)) return;
  }
}

uint64_t HistoryKeeper::unwritten() const {
  MutexLock lock(&mu_);
  return unwritten_;
}

std::string HistoryKeeper::fault() const {
  MutexLock lock(&mu_);
  return fault_;
}

void HistoryKeeper::Run() {
  bool stop = false;
  absl::Status written;
  while (!stop) {
    {
      MutexLock lock(&mu_);
      // Also where there is nothing to write it is opened at once: who asks is to be told what is wrong.
      const bool idle = written.ok() && store_ != nullptr;
      while (idle && waiting_.empty() && !begins_.has_value() && queries_.empty() && !stop_) more_.Wait(&mu_);
    }
    // Not a wait with a deadline: that would last for as long as somebody sets the clock back.
    absl::SleepFor(written.ok() ? kGather : kRetryPause);
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
      writing_ = batch_.size();
      working_ = true;
      if (!queries_.empty()) {
        asked = std::move(queries_.front());
        queries_.pop_front();
      }
    }
    written = Write();
    if (IsUnreadable(written)) {
      written = PutAside(written);
      if (written.ok()) written = Write();
    }
    // Whatever has happened to its files: they are opened anew.
    if (absl::IsUnavailable(written)) store_.reset();
    {
      MutexLock lock(&mu_);
      const std::string fault(written.message());
      if (fault != fault_ && !fault.empty()) spdlog::warn("history: {}", fault);
      if (fault.empty() && !fault_.empty()) spdlog::info("history: written again");
      fault_ = fault;
      writing_ = batch_.size();
    }
    if (asked.has_value()) Serve(*asked);
    MutexLock lock(&mu_);
    working_ = false;
    idle_.SignalAll();
  }
}

absl::Status HistoryKeeper::Open() {
  BERTH_ASSIGN_OR_RETURN(store_, HistoryStore::Open(options_));
  return absl::OkStatus();
}

absl::Status HistoryKeeper::PutAside(const absl::Status& why) {
  store_.reset();
  const absl::Status aside = HistoryStore::PutAside(options_.folder);
  if (!aside.ok()) {
    return absl::InternalError(absl::StrCat(why.message(), "; it cannot be put aside: ", aside.message()));
  }
  spdlog::warn("history: {}; it is put aside as {}, and begun anew", std::string(why.message()),
               HistoryStore::kAsideName);
  return absl::OkStatus();
}

absl::Status HistoryKeeper::Write() {
  if (store_ == nullptr) BERTH_RETURN_IF_ERROR(Open());
  if (beginning_.has_value()) {
    BERTH_RETURN_IF_ERROR(WriteRecords(beginning_->after));
    BERTH_RETURN_IF_ERROR(store_->Resume(beginning_->out));
    beginning_.reset();
  }
  return WriteRecords(batch_.size());
}

absl::Status HistoryKeeper::WriteRecords(size_t count) {
  const std::vector<core::LeaseRecord> records(batch_.begin(), batch_.begin() + static_cast<ptrdiff_t>(count));
  size_t written = 0;
  absl::Status status = store_->Write(records, &written);
  batch_.erase(batch_.begin(), batch_.begin() + static_cast<ptrdiff_t>(written));
  if (beginning_.has_value()) beginning_->after -= written;
  return status;
}

void HistoryKeeper::Serve(const Asked& asked) {
  absl::StatusOr<Page> page = absl::InternalError(fault());
  if (store_ != nullptr) {
    page = store_->List(asked.query);
    if (IsUnreadable(page.status())) PutAside(page.status()).IgnoreError();
  }
  // Who asks is not to ask again and again: the thread does.
  if (!page.ok()) page = absl::InternalError(absl::StrCat("the history cannot be read: ", page.status().message()));
  asked.answer(std::move(page));
}

}  // namespace berth
