// AttachFront's part that has to do with what an earlier broker left.

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/fd_passing.h"
#include "common/process.h"
#include "common/process_origin.h"
#include "common/status_macros.h"
#include "daemon/service/attach_front.h"

namespace berth::service {
namespace {

// Processes that are woken at a time, and the pause before the next: a thousand that come back at once are served later
// than some after the others.
constexpr size_t kToldAtATime = 64;
constexpr std::chrono::milliseconds kTellPause(1);
// Those who waited come back as they came, one process after the other, and all within the longest: a connection and a
// call of each are a third of a millisecond of two processors, which belong to who has not been served yet. Longer is
// for nobody's good: who is absent is granted nothing (docs/design/0015).
constexpr absl::Duration kReturnStep = absl::Milliseconds(1);
constexpr absl::Duration kLongestReturn = absl::Seconds(2);

bool HasHungUp(int socket) {
  pollfd entry = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

void AttachFront::KeepHearing(std::atomic<uint64_t>* word) {
  hearing_ = word;
  cautious_ = hearing_->exchange(0) != 0;
}

AttachFront::ConnectionPtr AttachFront::Readopt(UniqueFd socket, const core::Tenant& tenant,
                                                const core::ProcessInfo& process) {
  const ConnectionPtr connection = MakeConnection(std::move(socket));
  const bool of_operator =
      !operators_address_.empty() && ListenerAddress(connection->socket.get()) == operators_address_;
  connection->peer = {.tenant = tenant,
                      .process = process,
                      .role = of_operator ? Peer::Role::kAdmin : Peer::Role::kTenant};
  connection->place = QuotaOf(connection->peer.role).TakeAnyway(process.uid);
  connection->cautious = cautious_;
  return connection;
}

absl::Status AttachFront::AdoptLifeline(const core::Standing::Lifeline& lifeline, UniqueFd socket) {
  const ConnectionPtr connection = Readopt(std::move(socket), lifeline.tenant, lifeline.opener);
  connection->session = lifeline.session;
  {
    MutexLock lock(&mu_);
    lifelines_[lifeline.session] = connection;
  }
  // Who opened it may wait still to hear so. Who has heard it reads nothing there any more.
  if (!lifeline.joined) SendCapsule(connection, lifeline.session, lifeline.secret).IgnoreError();
  return WatchConnection(connection);
}

absl::Status AttachFront::AdoptProcess(const core::Standing::Process& process, UniqueFd pidfd,
                                       UniqueFd channel) {
  const ChannelId id = process.channel;
  BERTH_ASSIGN_OR_RETURN(
      const EventLoop::WatchId watch,
      loop_.Watch(pidfd.get(), EPOLLIN, [this, id](uint32_t) { OnProcessGone(id); }));
  // Who it is in full is read once there is time for that.
  if (audit_ != nullptr) {
    audit_->NoteProcess(process.session, id, std::make_shared<const AuditWho>(AuditWho{.process = process.process}));
  }
  adopted_.push_back(process);
  ConnectionPtr connection;
  // One that has hung up does not say as what it came.
  Peer::Role role = Peer::Role::kTenant;
  if (channel) {
    connection = Readopt(std::move(channel), process.tenant, process.process);
    connection->channel = id;
    role = connection->peer.role;
  }
  {
    MutexLock lock(&mu_);
    members_[id] = Member{.pidfd = std::move(pidfd),
                          .place = QuotaOf(role).TakeAnyway(process.process.uid),
                          .session = process.session,
                          .pid = process.process.pid,
                          .watch = watch};
    if (connection != nullptr) {
      channels_[id] = connection;
    } else {
      hung_up_.insert({process.session, process.process.pid, id});
    }
  }
  return connection == nullptr ? absl::OkStatus() : WatchConnection(connection);
}

void AttachFront::TellDeaths() {
  std::vector<ChannelId> gone;
  std::vector<ConnectionPtr> over;
  {
    MutexLock lock(&mu_);
    for (const auto& [channel, member] : members_) {
      if (IsGone(member.pidfd.get())) gone.push_back(channel);
    }
    for (const auto& [session, connection] : lifelines_) {
      if (HasHungUp(connection->socket.get())) over.push_back(connection);
    }
  }
  for (const ChannelId channel : gone) OnProcessGone(channel);
  for (const ConnectionPtr& connection : over) OnEnd(connection);
}

void AttachFront::TellResumed() {
  std::vector<core::Standing::Process> adopted = std::exchange(adopted_, {});
  // Who waits for nothing first, and at once.
  std::stable_sort(adopted.begin(), adopted.end(),
                   [](const auto& a, const auto& b) { return a.waits_since < b.waits_since; });
  const auto waiting = std::count_if(adopted.begin(), adopted.end(), [](const core::Standing::Process& process) {
    return process.waits_since.has_value();
  });
  const absl::Duration step = std::min(kReturnStep, kLongestReturn / std::max<int64_t>(waiting, 1));
  std::vector<Told> all;
  {
    MutexLock lock(&mu_);
    int64_t turn = 0;
    for (const core::Standing::Process& process : adopted) {
      const auto channel = channels_.find(process.channel);
      if (channel == channels_.end()) continue;
      all.push_back({.connection = channel->second,
                     .return_after = process.waits_since.has_value() ? step * turn++ : absl::ZeroDuration()});
    }
  }
  if (all.empty()) return;
  teller_ = std::jthread([this, all = std::move(all), adopted = std::move(adopted)](std::stop_token stop) {
    size_t told = 0;
    for (const Told& one : all) {
      if (stop.stop_requested()) return;
      const auto return_after = static_cast<uint32_t>(absl::ToInt64Milliseconds(one.return_after));
      // One that takes nothing more has not heard of the broker's end either.
      SendStruct(one.connection->socket.get(), attach::Resumed{.return_after = return_after}).IgnoreError();
      if (++told % kToldAtATime == 0) std::this_thread::sleep_for(kTellPause);
    }
    ReadOrigins(adopted, stop);
  });
}

void AttachFront::ReadOrigins(const std::vector<core::Standing::Process>& processes, std::stop_token stop) {
  if (audit_ == nullptr) return;
  size_t read = 0;
  for (const core::Standing::Process& process : processes) {
    if (stop.stop_requested()) return;
    AuditWho who = {.process = process.process, .origin = ReadOrigin(process.process.pid)};
    if (++read % kToldAtATime == 0) std::this_thread::sleep_for(kTellPause);
    MutexLock lock(&mu_);
    const auto member = members_.find(process.channel);
    // Alive now, it was alive when it was read.
    if (member == members_.end() || IsGone(member->second.pidfd.get())) continue;
    audit_->NoteProcess(process.session, process.channel, std::make_shared<const AuditWho>(std::move(who)));
  }
}

}  // namespace berth::service
