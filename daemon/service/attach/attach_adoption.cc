// AttachServer: adopts the state that an earlier broker left.

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/os/fd_passing.h"
#include "common/os/process.h"
#include "common/status_macros.h"
#include "daemon/base/process_origin.h"
#include "daemon/broker/needed_thread.h"
#include "daemon/service/attach/attach_server.h"

namespace berth::service {
namespace {

// Number of processes to notify at a time, and the pause before the next batch: a thousand processes that return at
// once are served later than the same number in batches.
constexpr size_t kNoticesAtATime = 64;
constexpr std::chrono::milliseconds kNotifyPause(1);
// Waiting processes return in their order, at these intervals, and all within the longest time. A connection and a call
// of one process take a third of a millisecond of two processors, which processes not served yet need. A longer
// interval helps no process: a detached process is granted nothing (docs/design/0015).
constexpr absl::Duration kReturnStep = absl::Milliseconds(1);
constexpr absl::Duration kLongestReturn = absl::Seconds(2);

bool HasHungUp(int socket) {
  pollfd entry = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

void AttachServer::SetHearing(std::atomic<uint64_t>* flag) {
  hearing_ = flag;
  cautious_ = hearing_->exchange(0) != 0;
}

AttachServer::ConnectionPtr AttachServer::Readopt(UniqueFd socket, const core::Tenant& tenant,
                                                  const core::ProcessInfo& process) {
  const ConnectionPtr connection = MakeConnection(std::move(socket));
  const bool of_operator =
      !operators_address_.empty() && ListenerAddress(connection->socket.get()) == operators_address_;
  connection->peer = {.tenant = tenant,
                      .process = process,
                      .role = of_operator ? Peer::Role::kAdmin : Peer::Role::kTenant};
  connection->place = QuotaOf(connection->peer.role).TakeAnyway(core::UserOf(tenant));
  connection->cautious = cautious_;
  return connection;
}

absl::Status AttachServer::AdoptLifeline(const core::RestoredState::Lifeline& lifeline, UniqueFd socket) {
  const ConnectionPtr connection = Readopt(std::move(socket), lifeline.tenant, lifeline.opener);
  connection->session = lifeline.session;
  {
    MutexLock lock(&mu_);
    lifelines_[lifeline.session] = connection;
  }
  // The opener may still wait for the session credentials. An opener that has them reads nothing more on the lifeline.
  if (!lifeline.joined) SendSessionCredentials(connection, lifeline.session, lifeline.secret).IgnoreError();
  return WatchConnection(connection);
}

void AttachServer::AdoptDetached(const core::RestoredState::Lifeline& lifeline) {
  if (holders_ == nullptr) {
    holders_ = std::make_unique<HolderWatch>(&loop_, [this](SessionId session) { OnHoldersGone(session); });
  }
  {
    MutexLock lock(&mu_);
    detached_[lifeline.session] = lifeline.session_credentials;
  }
  holders_->Watch(lifeline.session, lifeline.session_credentials);
}

absl::Status AttachServer::AdoptProcess(const core::RestoredState::Process& process, UniqueFd pidfd,
                                        UniqueFd channel) {
  ConnectionPtr connection;
  // A closed channel does not show the socket that it came in on.
  Peer::Role role = Peer::Role::kTenant;
  if (channel) {
    connection = Readopt(std::move(channel), process.tenant, process.process);
    connection->channel = process.channel;
    role = connection->peer.role;
  }
  UidQuota::Place place = QuotaOf(role).TakeAnyway(core::UserOf(process.tenant));
  return AdoptMember(process, Member{.pidfd = std::move(pidfd), .place = std::move(place)}, connection);
}

absl::Status AttachServer::AdoptAway(const core::RestoredState::Process& process, UniqueFd pidfd, bool proven) {
  return AdoptMember(process,
                     Member{.pidfd = std::move(pidfd),
                            .place = QuotaOf(Peer::Role::kTenant).TakeAnyway(core::UserOf(process.tenant)),
                            .away = true,
                            .proven = proven},
                     nullptr);
}

absl::Status AttachServer::AdoptMember(const core::RestoredState::Process& process, Member member,
                                       ConnectionPtr connection) {
  const ChannelId id = process.channel;
  BERTH_ASSIGN_OR_RETURN(
      member.watch, loop_.Watch(member.pidfd.get(), EPOLLIN, [this, id](uint32_t) { OnProcessGone(id); }));
  member.session = process.session;
  member.pid = process.process.pid;
  // The full identity is read later, off this path.
  if (audit_ != nullptr) {
    audit_->RecordProcess(process.session, id, std::make_shared<const AuditWho>(AuditWho{.process = process.process}));
  }
  adopted_.push_back(process);
  {
    MutexLock lock(&mu_);
    const bool hung_up = connection == nullptr && !member.away;
    members_[id] = std::move(member);
    if (connection != nullptr) channels_[id] = connection;
    if (hung_up) hung_up_.insert({process.session, process.process.pid, id});
  }
  return connection == nullptr ? absl::OkStatus() : WatchConnection(connection);
}

void AttachServer::NotifyDeaths() {
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

void AttachServer::NotifyResumed() {
  std::vector<core::RestoredState::Process> adopted = std::exchange(adopted_, {});
  // Processes that wait for nothing come first, without delay.
  std::stable_sort(adopted.begin(), adopted.end(),
                   [](const auto& a, const auto& b) { return a.waits_since < b.waits_since; });
  const auto waiting = std::count_if(adopted.begin(), adopted.end(), [](const core::RestoredState::Process& process) {
    return process.waits_since.has_value();
  });
  const absl::Duration step = std::min(kReturnStep, kLongestReturn / std::max<int64_t>(waiting, 1));
  std::vector<Notice> all;
  {
    MutexLock lock(&mu_);
    int64_t turn = 0;
    for (const core::RestoredState::Process& process : adopted) {
      const auto channel = channels_.find(process.channel);
      if (channel == channels_.end()) continue;
      all.push_back({.connection = channel->second,
                     .return_after = process.waits_since.has_value() ? step * turn++ : absl::ZeroDuration()});
    }
  }
  if (all.empty()) return;
  notifier_ = NeededThread("returning clients", [this, all = std::move(all), adopted = std::move(adopted),
                                                 stop = notifier_stop_.get_token()] {
    size_t notified = 0;
    for (const Notice& one : all) {
      if (stop.stop_requested()) return;
      const auto return_after = static_cast<uint32_t>(absl::ToInt64Milliseconds(one.return_after));
      // A channel that accepts no more has not noticed the broker's end either.
      SendStruct(one.connection->socket.get(), attach::Resumed{.return_after = return_after}).IgnoreError();
      if (++notified % kNoticesAtATime == 0) std::this_thread::sleep_for(kNotifyPause);
    }
    ReadOrigins(adopted, stop);
  });
}

void AttachServer::ReadOrigins(const std::vector<core::RestoredState::Process>& processes, std::stop_token stop) {
  if (audit_ == nullptr) return;
  size_t read = 0;
  for (const core::RestoredState::Process& process : processes) {
    if (stop.stop_requested()) return;
    AuditWho who = {.process = process.process, .origin = ReadOrigin(process.process.pid)};
    if (++read % kNoticesAtATime == 0) std::this_thread::sleep_for(kNotifyPause);
    MutexLock lock(&mu_);
    const auto member = members_.find(process.channel);
    // The process lives now, so the data read before is its own.
    if (member == members_.end() || IsGone(member->second.pidfd.get())) continue;
    audit_->RecordProcess(process.session, process.channel, std::make_shared<const AuditWho>(std::move(who)));
  }
}

}  // namespace berth::service
