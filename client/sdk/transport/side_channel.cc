#include "client/sdk/transport/side_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/sdk/transport/attach.h"
#include "client/sdk/transport/sdk_thread.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth::internal {
namespace {

absl::Status Ended() { return absl::UnavailableError("the daemon closed the side channel"); }

// Whether a delivery of kind `what` carries `fds` fds.
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

// Extracts the end notice from a kEnded, kRevoked or kRecall.
EndNotice NoticeOf(const attach::Delivery& delivery) {
  return {.reason = static_cast<EndReason>(delivery.why), .uid = static_cast<uint32_t>(delivery.owner)};
}

// Pause between two checks of open uses that delay a hand-over, in milliseconds.
constexpr int kLeastPause = 1;
constexpr int kLongestPause = 64;

// Pause between two attempts to connect to the next daemon.
constexpr absl::Duration kFirstRejoinPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestRejoinPause = absl::Seconds(1);

// Converts to a timeout for poll(), at most one hour.
int ToPollTimeout(absl::Duration duration) {
  duration = std::clamp(duration, absl::ZeroDuration(), absl::Hours(1));
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1))));
}

void Ring(int eventfd) {
  const uint64_t one = 1;
  // The write fails only when the counter is full, and a full counter wakes the reader too.
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

absl::StatusOr<std::unique_ptr<SideChannel>> SideChannel::Start(int socket, Fences* fences, Events events) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd looker_wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake || !looker_wake) return OsError("eventfd", errno);
  std::unique_ptr<SideChannel> side_channel(
      new SideChannel(socket, fences, std::move(wake), std::move(looker_wake), std::move(events)));
  fences->tracker.SetSender(
      [raw = side_channel.get()](const attach::HandedOver& handed) { raw->HandOver(handed); });
  BERTH_ASSIGN_OR_RETURN(side_channel->thread_,
                         Thread::Start("the session's channel", [raw = side_channel.get()] { raw->Run(); }));
  return side_channel;
}

SideChannel::SideChannel(int socket, Fences* fences, UniqueFd wake, UniqueFd looker_wake, Events events)
    : socket_(socket),
      fences_(*fences),
      wake_(std::move(wake)),
      looker_wake_(std::move(looker_wake)),
      events_(std::move(events)) {}

SideChannel::~SideChannel() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    // The daemon learns of unsent releases when this process's connection ends.
    FlushLocked();
  }
  Wake();
  // Start() may have failed to start the thread.
  if (thread_.joinable()) thread_.join();
}

void SideChannel::Wake() { Ring(wake_.get()); }

void SideChannel::Run() {
  const SdkThread mark;
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
    // AskHandOver() calls the streams' drivers, so it runs without the lock and on no thread of the program.
    for (const BlockId block : wanted) fences_.tracker.AskHandOver(block);
    if (CallBack() || !wanted.empty()) {
      pause = kLeastPause;
      continue;
    }
    const bool held_up = fences_.tracker.FinishHandOvers();
    if (!state.ok()) {
      events_.on_lost(state);
      // on_lost() may have ended the leases.
      CallBack();
      return;
    }
    if (away()) {
      Rejoin();
      continue;
    }
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

void SideChannel::Rejoin() {
  for (absl::Duration pause = kFirstRejoinPause;; pause = std::min(2 * pause, kLongestRejoinPause)) {
    absl::StatusOr<UniqueFd> socket = events_.rejoin();
    {
      MutexLock lock(&mu_);
      if (stop_) return;
      if (socket.ok() && ::dup3(socket->get(), socket_, O_CLOEXEC) >= 0) {
        away_ = false;
        await_until_ = absl::InfinitePast();
        EndBlocksLocked(Lease::kLost, BlockEvent{.what = BlockEvent::kLost, .end = {.reason = EndReason::kStateLost}});
        fences_.pages.End(absl::UnavailableError("every stream ended at the daemon's restart"));
        resumed_ = true;
        return_at_ = SteadyNow();
        returned_.SignalAll();
        WakeAsksLocked();
        return;
      }
      if (!socket.ok() && IsRejoinRefused(socket.status())) {
        EndLeasesLocked({.reason = EndReason::kNotResumed});
        return LoseLocked(socket.status());
      }
    }
    pollfd woken = {.fd = wake_.get(), .events = POLLIN, .revents = 0};
    ::poll(&woken, 1, ToPollTimeout(pause));
    if (woken.revents != 0) Silence(wake_.get());
    MutexLock lock(&mu_);
    if (stop_ || session_over_) return session_over_ ? LoseLocked(Ended()) : void();
  }
}

void SideChannel::OnEndLocked() {
  if (events_.rejoin == nullptr || session_over_) return LoseLocked(Ended());
  if (std::exchange(away_, true)) return;
  // Requests are sent to the next daemon again, which then sends the deliveries.
  for (const auto& [acquisition, giving_back] : giving_back_) NotifyLocked(giving_back);
  EndAsksLocked(Ended());
  Wake();
}

void SideChannel::EndWaitsLocked(const absl::Status& why) {
  for (const auto& [sequence, expected] : expected_) {
    if (!expected->result.has_value()) expected->result = why;
    expected->arrived.Signal();
  }
  for (const auto& [acquisition, giving_back] : giving_back_) NotifyLocked(giving_back);
  WakeAsksLocked();
}

bool SideChannel::away() const {
  MutexLock lock(&mu_);
  return away_ && state_.ok();
}

void SideChannel::Expect(uint64_t sequence) {
  MutexLock lock(&mu_);
  auto expected = std::make_shared<Expected>();
  if (!state_.ok()) expected->result = state_;
  expected_[sequence] = std::move(expected);
}

absl::StatusOr<Arrival> SideChannel::Await(uint64_t sequence, absl::Time deadline) {
  MutexLock lock(&mu_);
  const auto at = expected_.find(sequence);
  if (at == expected_.end())
    return absl::InternalError(absl::StrCat("sequence ", sequence, " was not expected"));
  const std::shared_ptr<Expected> expected = at->second;
  if (!expected->result.has_value()) {
    DrainLocked();
    // The channel's thread notifies the owner of a loss that this thread saw first.
    if (!state_.ok()) Wake();
  }
  bool late = false;
  while (!expected->result.has_value() && !late) late = expected->arrived.WaitWithDeadline(&mu_, deadline);
  expected_.erase(sequence);
  if (!expected->result.has_value()) {
    return absl::DeadlineExceededError(absl::StrCat("the block of request ", sequence, " did not arrive in time"));
  }
  return *std::move(expected->result);
}

void SideChannel::Abandon(uint64_t sequence) {
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

absl::Status SideChannel::GiveBack(AcquisitionId acquisition, bool if_idle, absl::Time deadline) {
  GivingBack own;
  MutexLock lock(&mu_);
  BERTH_RETURN_IF_ERROR(state_);
  if (away_) return absl::UnavailableError("the daemon is restarting and cannot receive a permit's release");
  const attach::GiveBack give_back = {.if_idle = if_idle ? 1u : 0u, .acquisition = acquisition.value()};
  BERTH_RETURN_IF_ERROR(SendStruct(socket_, give_back));
  giving_back_[acquisition.value()] = &own;
  bool late = false;
  while (!own.taken.has_value() && state_.ok() && !away_ && !late) {
    if (looker_ == nullptr) {
      LookLocked(&own, deadline);
    } else {
      own.news.WaitWithDeadline(&mu_, deadline);
    }
    late = SteadyNow() >= deadline;
  }
  giving_back_.erase(acquisition.value());
  // The next caller polls the socket.
  if (looker_ == nullptr && !giving_back_.empty()) NotifyLocked(giving_back_.begin()->second);
  if (own.taken.has_value()) {
    return *own.taken ? absl::OkStatus() : absl::UnavailableError("the daemon cannot release a permit now");
  }
  if (!state_.ok()) return state_;
  if (away_) return absl::UnavailableError("the daemon stopped before it released the permit");
  return absl::DeadlineExceededError("the daemon did not release the permit in time");
}

void SideChannel::LookLocked(GivingBack* own, absl::Time deadline) {
  looker_ = own;
  mu_.Unlock();
  pollfd entries[2] = {{.fd = socket_, .events = POLLIN}, {.fd = looker_wake_.get(), .events = POLLIN}};
  ::poll(entries, 2, ToPollTimeout(deadline - SteadyNow()));
  if (entries[1].revents != 0) Silence(looker_wake_.get());
  mu_.Lock();
  looker_ = nullptr;
  DrainLocked();
  // The channel's thread notifies the owner of a loss that this thread saw first.
  if (!state_.ok()) Wake();
}

void SideChannel::NotifyLocked(GivingBack* giving_back) {
  if (giving_back == looker_) {
    Ring(looker_wake_.get());
  } else {
    giving_back->news.Signal();
  }
}

void SideChannel::HandOver(const attach::HandedOver& handed) {
  MutexLock lock(&mu_);
  handed_over_.push_back(handed);
  FlushLocked();
}

void SideChannel::LetGo(ImportId import) {
  MutexLock lock(&mu_);
  LetGoLocked(import);
}

bool SideChannel::sent() const {
  MutexLock lock(&mu_);
  return !state_.ok() || away_ || (acknowledged_ >= received_ && let_go_.empty());
}

void SideChannel::LetGoLocked(ImportId import) {
  if (!state_.ok()) return;
  let_go_.push_back(import);
  FlushLocked();
}

void SideChannel::LoseLocked(const absl::Status& why) {
  if (!state_.ok()) return;
  state_ = end_.has_value() ? absl::UnavailableError(Describe(*end_)) : why;
  if (session_over_) {
    EndBlocksLocked(Lease::kEnded, std::nullopt);
  } else {
    EndLeasesLocked({.reason = EndReason::kChannelBroken});
    // Shut the socket down, so that the daemon stops counting on a process that reads no messages.
    ::shutdown(socket_, SHUT_RDWR);
  }
  returned_.SignalAll();
  EndWaitsLocked(state_);
  fences_.pages.End(state_);
}

void SideChannel::TakeIn() {
  MutexLock lock(&mu_);
  DrainLocked();
  // The channel's thread notifies the owner of a loss that this thread saw first.
  if (!state_.ok()) Wake();
}

void SideChannel::EndLeases() {
  MutexLock lock(&mu_);
  session_over_ = true;
  EndBlocksLocked(Lease::kEnded, std::nullopt);
}

void SideChannel::EndLeasesLocked(const EndNotice& end) {
  session_over_ = true;
  if (!end_.has_value()) end_ = end;
  EndBlocksLocked(Lease::kEnded, BlockEvent{.what = BlockEvent::kEnded, .end = end});
  permits_.EndAll(end);
  plans_.EndAll(end);
  Wake();
}

bool SideChannel::CallBack() {
  bool called = permits_.CallBack();
  called = plans_.CallBack() || called;
  return blocks_.CallBack() || called;
}

std::shared_ptr<BlockListener> SideChannel::WatchBlock(LeaseRecord& lease,
                                                       std::function<void(const BlockEvent&)> on_event) {
  std::shared_ptr<BlockListener> listener = blocks_.Watch(lease, std::move(on_event));
  // The block may have ended before.
  Wake();
  return listener;
}

void SideChannel::EndBlocksLocked(Lease how, const std::optional<BlockEvent>& event) {
  for (const auto& [block, weak] : leases_) {
    const std::shared_ptr<LeaseRecord> lease = weak.lock();
    if (lease == nullptr) continue;
    EndLease(lease->state, how);
    if (event.has_value()) blocks_.Notify(*lease, *event);
  }
}

void SideChannel::OnRecallLocked(const attach::Delivery& delivery) {
  const auto at = leases_.find(BlockId(delivery.block));
  if (at == leases_.end()) return;
  const std::shared_ptr<LeaseRecord> lease = at->second.lock();
  if (lease == nullptr) return;
  const EndNotice end = NoticeOf(delivery);
  const bool memory_lost = end.reason == EndReason::kMemoryLost;
  const bool lost = memory_lost || end.reason == EndReason::kStateLost;
  // The state page shows lost memory of a living daemon.
  if (!memory_lost) EndLease(lease->state, lost ? Lease::kLost : Lease::kFreed);
  blocks_.Notify(*lease, {.what = lost ? BlockEvent::kLost : BlockEvent::kFreed, .end = end});
  Wake();
}

void SideChannel::DrainLocked() {
  while (state_.ok() && !away_) {
    absl::StatusOr<Message> message = ReceiveMessageOrItsBytes(socket_);
    if (message.ok()) {
      if (const absl::Status status = DispatchLocked(*std::move(message)); !status.ok()) LoseLocked(status);
    } else if (IsWouldBlock(message.status())) {
      break;
    } else if (IsEndOfStream(message.status()) || absl::IsUnavailable(message.status())) {
      OnEndLocked();
    } else {
      LoseLocked(message.status());
    }
  }
  FlushLocked();
}

absl::Status SideChannel::DispatchLocked(Message message) {
  if (const std::optional<attach::Resumed> resumed = AsResumed(message)) {
    resumed_ = true;
    return_at_ = SteadyNow() + absl::Milliseconds(resumed->return_after);
    EndAsksLocked(absl::UnavailableError("the daemon ended before it answered"));
    Wake();
    return absl::OkStatus();
  }
  if (DispatchAnswerLocked(message)) return absl::OkStatus();
  if (const std::optional<attach::GaveBack> gave_back = AsGaveBack(message)) {
    const auto at = giving_back_.find(gave_back->acquisition);
    if (at == giving_back_.end()) return absl::OkStatus();
    at->second->taken = gave_back->taken != 0;
    NotifyLocked(at->second);
    return absl::OkStatus();
  }
  attach::Delivery delivery;
  if (message.bytes.size() != sizeof(delivery)) {
    return absl::InternalError(absl::StrCat("the side channel carried a message of ", message.bytes.size(), " bytes"));
  }
  memcpy(&delivery, message.bytes.data(), sizeof(delivery));
  const size_t fds = message.fds.size() + (message.fds_lost ? 1 : 0);
  if (delivery.kind != attach::Kind::kDelivery || !FitsFds(delivery.what, fds)) {
    return absl::InternalError("the side channel carried a malformed delivery");
  }
  // A repetition after a restart of the broker: the delivery was received before, and only its acknowledgement was
  // lost.
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
      OnRecallLocked(delivery);
      break;
    case attach::DeliveryKind::kAskBack:
      if (const auto at = leases_.find(BlockId(delivery.block)); at != leases_.end()) {
        if (const std::shared_ptr<LeaseRecord> lease = at->second.lock()) lease->asked_back = true;
      }
      break;
    case attach::DeliveryKind::kOwnPage:
      // Before the acknowledgement: from then on the daemon withdraws grants that this process does not take up.
      if (fd || message.fds_lost) fences_.pages.ReceiveOwn(fd.get());
      DeliverFdLocked(delivery.sequence, std::move(fd),
                      absl::ResourceExhaustedError("no file descriptor was free for a fence page"));
      break;
    case attach::DeliveryKind::kModule:
    case attach::DeliveryKind::kModulePlace:
      DeliverFdLocked(delivery.sequence, std::move(fd),
                      message.fds_lost ? absl::ResourceExhaustedError("no file descriptor was free for a module")
                                       : absl::NotFoundError("the module has left the node's cache"));
      break;
    case attach::DeliveryKind::kForeignPage:
      // Without the fd this process cannot wait for the fence values, so the channel fails instead of skipping a wait.
      if (message.fds_lost)
        return absl::ResourceExhaustedError("no file descriptor was free for a fence page");
      fences_.pages.Put(ChannelId(delivery.owner), std::move(fd));
      break;
    case attach::DeliveryKind::kHandOver:
      wanted_.push_back(BlockId(delivery.block));
      Wake();
      break;
    case attach::DeliveryKind::kEnded:
      session_over_ = true;
      // A notice without a reason means that this process itself has ended the session.
      if (const EndNotice end = NoticeOf(delivery); end.reason != EndReason::kUnknown) {
        EndLeasesLocked(end);
      } else {
        EndBlocksLocked(Lease::kEnded, std::nullopt);
      }
      break;
    case attach::DeliveryKind::kOverdue:
      permits_.Notify(delivery.permit, {.what = PermitEvent::kOverdue});
      Wake();
      break;
    case attach::DeliveryKind::kRevoked:
      permits_.Notify(delivery.permit, {.what = PermitEvent::kEnded, .end = NoticeOf(delivery)});
      Wake();
      break;
    case attach::DeliveryKind::kPlanStale:
      plans_.Notify({.plan = delivery.plan,
                     .revision = delivery.revision,
                     .why = delivery.why,
                     .device = delivery.device});
      Wake();
      break;
  }
  return absl::OkStatus();
}

void SideChannel::DeliverFdLocked(uint64_t sequence, UniqueFd fd, const absl::Status& without) {
  const auto at = expected_.find(sequence);
  if (at == expected_.end() || at->second->result.has_value()) return;
  if (fd) {
    at->second->result = Arrival{.fd = std::move(fd)};
  } else {
    at->second->result = without;
  }
  at->second->arrived.Signal();
}

void SideChannel::DeliverLocked(const attach::Delivery& delivery, UniqueFd fd) {
  const ImportId import(delivery.import);
  const auto at = expected_.find(delivery.sequence);
  if (at == expected_.end() || at->second->result.has_value()) {
    fd.reset();
    return LetGoLocked(import);
  }
  if (!fd && delivery.what == attach::DeliveryKind::kBlock) {
    at->second->result = absl::ResourceExhaustedError("no file descriptor was free for a block");
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

std::shared_ptr<LeaseRecord> SideChannel::LeaseOfLocked(BlockId block) {
  std::weak_ptr<LeaseRecord>& weak = leases_[block];
  std::shared_ptr<LeaseRecord> lease = weak.lock();
  if (lease != nullptr) return lease;
  lease = std::make_shared<LeaseRecord>();
  weak = lease;
  // Sweep expired records when the table has doubled since the last sweep: a constant cost per block.
  if (leases_.size() >= sweep_at_) {
    absl::erase_if(leases_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(kFirstSweep, leases_.size() * 2);
  }
  return lease;
}

void SideChannel::FlushLocked() {
  if (!state_.ok() || away_) return;
  // The daemon empties a full socket. The channel's thread waits for that and sends the rest.
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
