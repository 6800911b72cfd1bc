#include "client/internal/channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth::internal {
namespace {

// Whether a delivery of that kind comes with so many fds.
bool FitsFds(attach::DeliveryKind what, size_t fds) {
  switch (what) {
    case attach::DeliveryKind::kBlock:
      return fds == 1;
    case attach::DeliveryKind::kOwnPage:
    case attach::DeliveryKind::kForeignPage:
    case attach::DeliveryKind::kModule:
    case attach::DeliveryKind::kModulePlace:
      return fds <= 1;
    case attach::DeliveryKind::kRecall:
    case attach::DeliveryKind::kHandOver:
    case attach::DeliveryKind::kEnded:
    case attach::DeliveryKind::kAskBack:
    case attach::DeliveryKind::kHandleBlock:
    case attach::DeliveryKind::kOverdue:
    case attach::DeliveryKind::kRevoked:
    case attach::DeliveryKind::kPlanStale:
      return fds == 0;
  }
  return false;
}

std::optional<attach::Resumed> AsResumed(const Message& message) {
  attach::Resumed resumed;
  if (message.bytes.size() != sizeof(resumed) || !message.fds.empty()) return std::nullopt;
  memcpy(&resumed, message.bytes.data(), sizeof(resumed));
  return resumed.kind == attach::Kind::kResumed ? std::optional(resumed) : std::nullopt;
}

std::optional<attach::GaveBack> AsGaveBack(const Message& message) {
  attach::GaveBack gave_back;
  if (message.bytes.size() != sizeof(gave_back) || !message.fds.empty()) return std::nullopt;
  memcpy(&gave_back, message.bytes.data(), sizeof(gave_back));
  return gave_back.kind == attach::Kind::kGaveBack ? std::optional(gave_back) : std::nullopt;
}

// Between two looks at open uses that hold a hand-over up, in milliseconds.
constexpr int kLeastPause = 1;
constexpr int kLongestPause = 64;

// For poll(), which may end sooner where it is more than an hour.
int ToPollTimeout(absl::Duration duration) {
  duration = std::clamp(duration, absl::ZeroDuration(), absl::Hours(1));
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1))));
}

void Ring(int eventfd) {
  const uint64_t one = 1;
  // Can only fail when the counter is full, and then it wakes all the same.
  [[maybe_unused]] const ssize_t written = ::write(eventfd, &one, sizeof(one));
}

void Silence(int eventfd) {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = ::read(eventfd, &count, sizeof(count));
}

absl::Status SendHandOver(int socket, const attach::HandedOver& handed) {
  return SendMessage(socket,
                     std::as_bytes(std::span(&handed, 1)).first(attach::HandedOver::BytesOf(handed.count)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Channel>> Channel::Start(int socket, Fences* fences, Events events) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd looker_wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake || !looker_wake) return OsError("eventfd", errno);
  std::unique_ptr<Channel> channel(
      new Channel(socket, fences, std::move(wake), std::move(looker_wake), std::move(events)));
  fences->tracker.SetSender(
      [raw = channel.get()](const attach::HandedOver& handed) { raw->HandOver(handed); });
  channel->thread_ = std::thread([raw = channel.get()] { raw->Run(); });
  return channel;
}

Channel::Channel(int socket, Fences* fences, UniqueFd wake, UniqueFd looker_wake, Events events)
    : socket_(socket),
      fences_(*fences),
      wake_(std::move(wake)),
      looker_wake_(std::move(looker_wake)),
      events_(std::move(events)) {}

Channel::~Channel() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    // What could not be sent the daemon learns from this process's end.
    FlushLocked();
  }
  Wake();
  thread_.join();
}

void Channel::Wake() { Ring(wake_.get()); }

void Channel::Run() {
  int pause = kLeastPause;
  while (true) {
    absl::Status state;
    bool wants_write;
    bool resumed;
    bool returns;
    absl::Time return_at;
    std::deque<BlockId> wanted;
    {
      MutexLock lock(&mu_);
      if (stop_) return;
      state = state_;
      wants_write = HasToSendLocked();
      wanted.swap(wanted_);
      resumed = std::exchange(resumed_, false);
      returns = return_at_ <= SteadyNow();
      if (returns) return_at_ = absl::InfiniteFuture();
      return_at = return_at_;
    }
    if (resumed) events_.on_resumed();
    if (returns) events_.on_return();
    // Asks streams' drivers, so without the lock, and on no thread of the program's.
    for (const BlockId block : wanted) fences_.tracker.AskHandOver(block);
    const bool called_permits = permits_.CallBack();
    const bool called_back = plans_.CallBack() || called_permits;
    if (!wanted.empty() || called_back) {
      pause = kLeastPause;
      continue;
    }
    const bool held_up = fences_.tracker.FinishHandOvers();
    if (!state.ok()) return events_.on_lost(state);
    pollfd fds[2] = {{.fd = socket_, .events = static_cast<short>(POLLIN | (wants_write ? POLLOUT : 0))},
                     {.fd = wake_.get(), .events = POLLIN}};
    const absl::Duration longest =
        std::min(return_at - SteadyNow(), held_up ? absl::Milliseconds(pause) : absl::InfiniteDuration());
    ::poll(fds, 2, ToPollTimeout(longest));
    pause = std::min(pause * 2, kLongestPause);
    if (fds[1].revents != 0) Silence(wake_.get());
    if (fds[0].revents == 0) continue;
    MutexLock lock(&mu_);
    DrainLocked();
  }
}

void Channel::Expect(uint64_t sequence) {
  MutexLock lock(&mu_);
  auto expected = std::make_shared<Expected>();
  if (!state_.ok()) expected->result = state_;
  expected_[sequence] = std::move(expected);
}

absl::StatusOr<Arrival> Channel::Await(uint64_t sequence, absl::Time deadline) {
  MutexLock lock(&mu_);
  const auto at = expected_.find(sequence);
  if (at == expected_.end())
    return absl::InternalError(absl::StrCat("sequence ", sequence, " was not expected"));
  const std::shared_ptr<Expected> expected = at->second;
  if (!expected->result.has_value()) {
    DrainLocked();
    // The thread tells the owner of a loss that this one saw first.
    if (!state_.ok()) Wake();
  }
  bool late = false;
  while (!expected->result.has_value() && !late) late = expected->arrived.WaitWithDeadline(&mu_, deadline);
  expected_.erase(sequence);
  if (!expected->result.has_value()) {
    return absl::DeadlineExceededError(
        absl::StrCat("the block of request ", sequence, " did not come in time"));
  }
  return *std::move(expected->result);
}

void Channel::Abandon(uint64_t sequence) {
  MutexLock lock(&mu_);
  const auto at = expected_.find(sequence);
  if (at == expected_.end()) return;
  const std::shared_ptr<Expected> expected = std::move(at->second);
  expected_.erase(at);
  if (!expected->result.has_value() || !expected->result->ok()) return;
  const ImportId import = (*expected->result)->import;
  expected->result.reset();
  if (import) LetGoLocked(import);
}

absl::Status Channel::GiveBack(AcquisitionId acquisition, bool if_idle, absl::Time deadline) {
  GivingBack own;
  MutexLock lock(&mu_);
  BERTH_RETURN_IF_ERROR(state_);
  const attach::GiveBack give_back = {.if_idle = if_idle ? 1u : 0u, .acquisition = acquisition.value()};
  BERTH_RETURN_IF_ERROR(SendStruct(socket_, give_back));
  giving_back_[acquisition.value()] = &own;
  bool late = false;
  while (!own.taken.has_value() && state_.ok() && !late) {
    if (looker_ == nullptr) {
      LookLocked(&own, deadline);
    } else {
      own.news.WaitWithDeadline(&mu_, deadline);
    }
    late = SteadyNow() >= deadline;
  }
  giving_back_.erase(acquisition.value());
  // The next one looks.
  if (looker_ == nullptr && !giving_back_.empty()) TellLocked(giving_back_.begin()->second);
  if (own.taken.has_value()) {
    return *own.taken ? absl::OkStatus() : absl::UnavailableError("the daemon takes no permit back now");
  }
  if (!state_.ok()) return state_;
  return absl::DeadlineExceededError("the daemon did not take a permit back in time");
}

void Channel::LookLocked(GivingBack* own, absl::Time deadline) {
  looker_ = own;
  mu_.Unlock();
  pollfd entries[2] = {{.fd = socket_, .events = POLLIN}, {.fd = looker_wake_.get(), .events = POLLIN}};
  ::poll(entries, 2, ToPollTimeout(deadline - SteadyNow()));
  if (entries[1].revents != 0) Silence(looker_wake_.get());
  mu_.Lock();
  looker_ = nullptr;
  DrainLocked();
  // The thread tells the owner of a loss that this one saw first.
  if (!state_.ok()) Wake();
}

void Channel::TellLocked(GivingBack* giving_back) {
  if (giving_back == looker_) {
    Ring(looker_wake_.get());
  } else {
    giving_back->news.Signal();
  }
}

void Channel::HandOver(const attach::HandedOver& handed) {
  MutexLock lock(&mu_);
  handed_over_.push_back(handed);
  FlushLocked();
}

void Channel::LetGo(ImportId import) {
  MutexLock lock(&mu_);
  LetGoLocked(import);
}

bool Channel::sent() const {
  MutexLock lock(&mu_);
  return !state_.ok() || (acknowledged_ >= received_ && let_go_.empty());
}

void Channel::LetGoLocked(ImportId import) {
  if (!state_.ok()) return;
  let_go_.push_back(import);
  FlushLocked();
}

void Channel::LoseLocked(const absl::Status& why) {
  if (!state_.ok()) return;
  state_ = why;
  EndLeasesLocked();
  for (const auto& [sequence, expected] : expected_) {
    if (!expected->result.has_value()) expected->result = why;
    expected->arrived.Signal();
  }
  for (const auto& [acquisition, giving_back] : giving_back_) TellLocked(giving_back);
  fences_.pages.End(why);
}

void Channel::EndLeases() {
  MutexLock lock(&mu_);
  EndLeasesLocked();
}

void Channel::EndLeasesLocked() {
  for (const auto& [block, weak] : leases_) {
    if (const std::shared_ptr<LeaseRecord> lease = weak.lock()) EndLease(lease->word, Lease::kEnded);
  }
}

void Channel::DrainLocked() {
  while (state_.ok()) {
    absl::StatusOr<Message> message = ReceiveMessageOrItsBytes(socket_);
    if (message.ok()) {
      if (const absl::Status status = DispatchLocked(*std::move(message)); !status.ok()) LoseLocked(status);
    } else if (IsWouldBlock(message.status())) {
      break;
    } else if (IsEndOfStream(message.status())) {
      LoseLocked(absl::UnavailableError("the daemon closed the channel"));
    } else {
      LoseLocked(message.status());
    }
  }
  FlushLocked();
}

absl::Status Channel::DispatchLocked(Message message) {
  if (const std::optional<attach::Resumed> resumed = AsResumed(message)) {
    resumed_ = true;
    return_at_ = SteadyNow() + absl::Milliseconds(resumed->return_after);
    Wake();
    return absl::OkStatus();
  }
  if (const std::optional<attach::GaveBack> gave_back = AsGaveBack(message)) {
    const auto at = giving_back_.find(gave_back->acquisition);
    if (at == giving_back_.end()) return absl::OkStatus();
    at->second->taken = gave_back->taken != 0;
    TellLocked(at->second);
    return absl::OkStatus();
  }
  attach::Delivery delivery;
  if (message.bytes.size() != sizeof(delivery)) {
    return absl::InternalError(
        absl::StrCat("the channel carried a message of ", message.bytes.size(), " bytes"));
  }
  memcpy(&delivery, message.bytes.data(), sizeof(delivery));
  const size_t fds = message.fds.size() + (message.fds_lost ? 1 : 0);
  if (delivery.kind != attach::Kind::kDelivery || !FitsFds(delivery.what, fds)) {
    return absl::InternalError("the channel carried a message that is no delivery");
  }
  // Sent again after a restart of the broker: it was taken in before, only its acknowledgement was lost.
  if (delivery.number <= received_) {
    acknowledged_ = std::min(acknowledged_, delivery.number - 1);
    return absl::OkStatus();
  }
  received_ = delivery.number;
  UniqueFd fd = message.fds.empty() ? UniqueFd() : std::move(message.fds[0]);
  switch (delivery.what) {
    case attach::DeliveryKind::kBlock:
    case attach::DeliveryKind::kHandleBlock:
      DeliverLocked(delivery, std::move(fd));
      break;
    case attach::DeliveryKind::kRecall:
      if (const auto at = leases_.find(BlockId(delivery.block)); at != leases_.end()) {
        if (const std::shared_ptr<LeaseRecord> lease = at->second.lock())
          EndLease(lease->word, Lease::kFreed);
      }
      break;
    case attach::DeliveryKind::kAskBack:
      if (const auto at = leases_.find(BlockId(delivery.block)); at != leases_.end()) {
        if (const std::shared_ptr<LeaseRecord> lease = at->second.lock()) lease->asked_back = true;
      }
      break;
    case attach::DeliveryKind::kOwnPage:
      DeliverFdLocked(delivery.sequence, std::move(fd),
                      absl::ResourceExhaustedError("there was no file descriptor for a fence page"));
      break;
    case attach::DeliveryKind::kModule:
    case attach::DeliveryKind::kModulePlace:
      DeliverFdLocked(delivery.sequence, std::move(fd),
                      message.fds_lost
                          ? absl::ResourceExhaustedError("no file descriptor was free for a module")
                          : absl::NotFoundError("the module has left the node's cache meanwhile"));
      break;
    case attach::DeliveryKind::kForeignPage:
      // Without a descriptor for it the words cannot be waited for: then who wants to is told, not let on.
      if (message.fds_lost)
        return absl::ResourceExhaustedError("no file descriptor was free for a fence page");
      fences_.pages.Put(ChannelId(delivery.owner), std::move(fd));
      break;
    case attach::DeliveryKind::kHandOver:
      wanted_.push_back(BlockId(delivery.block));
      Wake();
      break;
    case attach::DeliveryKind::kEnded:
      EndLeasesLocked();
      break;
    case attach::DeliveryKind::kOverdue:
    case attach::DeliveryKind::kRevoked:
      permits_.Tell(delivery.permit, delivery.what == attach::DeliveryKind::kRevoked ? PermitEvent::kRevoked
                                                                                     : PermitEvent::kOverdue);
      Wake();
      break;
    case attach::DeliveryKind::kPlanStale:
      plans_.Tell({.plan = delivery.plan,
                   .revision = delivery.revision,
                   .why = delivery.why,
                   .device = delivery.device});
      Wake();
      break;
  }
  return absl::OkStatus();
}

void Channel::DeliverFdLocked(uint64_t sequence, UniqueFd fd, const absl::Status& without) {
  const auto at = expected_.find(sequence);
  if (at == expected_.end() || at->second->result.has_value()) return;
  if (fd) {
    at->second->result = Arrival{.fd = std::move(fd)};
  } else {
    at->second->result = without;
  }
  at->second->arrived.Signal();
}

void Channel::DeliverLocked(const attach::Delivery& delivery, UniqueFd fd) {
  const ImportId import(delivery.import);
  const auto at = expected_.find(delivery.sequence);
  if (at == expected_.end() || at->second->result.has_value()) {
    fd.reset();
    return LetGoLocked(import);
  }
  if (!fd && delivery.what == attach::DeliveryKind::kBlock) {
    at->second->result = absl::ResourceExhaustedError("this process had no file descriptor free for a block");
    at->second->arrived.Signal();
    return LetGoLocked(import);
  }
  const BlockId block(delivery.block);
  at->second->result = Arrival{.block = block,
                               .import = import,
                               .fd = std::move(fd),
                               .tracked = fences_.tracker.Track(block, delivery.shared != 0),
                               .lease = LeaseOfLocked(block)};
  at->second->arrived.Signal();
}

std::shared_ptr<LeaseRecord> Channel::LeaseOfLocked(BlockId block) {
  std::weak_ptr<LeaseRecord>& weak = leases_[block];
  std::shared_ptr<LeaseRecord> lease = weak.lock();
  if (lease != nullptr) return lease;
  lease = std::make_shared<LeaseRecord>();
  weak = lease;
  // Words that nobody reads any more go when the table has doubled since the last time: a constant cost per
  // block.
  if (leases_.size() >= sweep_at_) {
    absl::erase_if(leases_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(kFirstSweep, leases_.size() * 2);
  }
  return lease;
}

void Channel::FlushLocked() {
  if (!state_.ok()) return;
  // A full socket is emptied by the daemon; the channel's thread waits for that and sends the rest.
  if (acknowledged_ < received_ && SendStruct(socket_, attach::Ack{.number = received_}).ok()) {
    acknowledged_ = received_;
  }
  while (!let_go_.empty() && SendStruct(socket_, attach::LetGo{.import = let_go_.front().value()}).ok()) {
    let_go_.pop_front();
  }
  while (!handed_over_.empty() && SendHandOver(socket_, handed_over_.front()).ok()) handed_over_.pop_front();
  if (HasToSendLocked()) Wake();
}

}  // namespace berth::internal
