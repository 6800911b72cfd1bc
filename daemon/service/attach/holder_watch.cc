#include "daemon/service/attach/holder_watch.h"

#include <sys/epoll.h>

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/steady_clock.h"
#include "daemon/broker/needed_thread.h"
#include "spdlog/spdlog.h"

namespace berth::service {
namespace {

// Delay before the retry of a search that failed for want of fds or memory.
constexpr absl::Duration kRetryPause = absl::Seconds(1);
// One search may miss a process that inherits the session credentials from an ending process; the next search finds it.
constexpr int kEmptySearches = 2;

}  // namespace

HolderWatch::HolderWatch(EventLoop* loop, OnGone on_gone, Find find)
    : loop_(*loop), on_gone_(std::move(on_gone)), find_(std::move(find)) {
  thread_ = NeededThread("holders of sessions", [this] { Run(); });
}

HolderWatch::~HolderWatch() {
  Stop();
  MutexLock lock(&mu_);
  for (const auto& [session, watched] : watched_) {
    for (const auto& [number, holder] : watched->holders) loop_.Unwatch(holder.watch);
  }
}

void HolderWatch::Stop() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    news_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

void HolderWatch::Watch(SessionId session, uint64_t session_credentials) {
  Cancel(session);
  MutexLock lock(&mu_);
  watched_[session] = std::make_unique<Watched>(Watched{.session_credentials = session_credentials});
  search_ = true;
  news_.Signal();
}

void HolderWatch::Cancel(SessionId session) {
  MutexLock lock(&mu_);
  const auto found = watched_.find(session);
  if (found == watched_.end()) return;
  for (const auto& [number, holder] : found->second->holders) loop_.Unwatch(holder.watch);
  watched_.erase(found);
}

void HolderWatch::Run() {
  while (true) {
    absl::flat_hash_set<uint64_t> all_credentials;
    {
      MutexLock lock(&mu_);
      while (!search_ && !stop_) news_.WaitWithDeadline(&mu_, absl::InfiniteFuture());
      if (stop_) return;
      search_ = false;
      for (const auto& [session, watched] : watched_) {
        watched->searched = watched->holders.empty();
        if (watched->searched) all_credentials.insert(watched->session_credentials);
      }
    }
    if (all_credentials.empty()) continue;
    absl::StatusOr<std::map<uint64_t, std::vector<CredentialsHolder>>> found = find_(all_credentials);
    if (found.ok()) {
      for (const SessionId session : Take(*std::move(found))) on_gone_(session);
      continue;
    }
    if (absl::IsUnimplemented(found.status())) {
      spdlog::error("cannot search for the holders of lost lifelines: {}; end their sessions with `berth sessions end`",
                    std::string(found.status().message()));
      return;
    }
    spdlog::warn("cannot search for the holders of lost lifelines: {}; retrying in {} s",
                 std::string(found.status().message()), absl::ToInt64Seconds(kRetryPause));
    MutexLock lock(&mu_);
    search_ = true;
    const absl::Time retry = SteadyNow() + kRetryPause;
    while (!stop_ && !news_.WaitWithDeadline(&mu_, retry)) {
    }
  }
}

std::vector<SessionId> HolderWatch::Take(std::map<uint64_t, std::vector<CredentialsHolder>> found) {
  std::vector<SessionId> gone;
  MutexLock lock(&mu_);
  for (auto& [session, watched] : watched_) {
    // The result is out of date for a session that was added during the search, or again: its holder may have closed
    // the credentials meanwhile. The next search covers the session.
    if (!std::exchange(watched->searched, false)) continue;
    const auto holders = found.find(watched->session_credentials);
    if (holders == found.end()) {
      if (++watched->empty == kEmptySearches) {
        gone.push_back(session);
      } else {
        search_ = true;
      }
      continue;
    }
    watched->empty = 0;
    for (CredentialsHolder& holder : holders->second) {
      const uint64_t number = ++last_number_;
      const absl::StatusOr<EventLoop::WatchId> watch =
          loop_.Watch(holder.pidfd.get(), EPOLLIN, [this, session = session, number](uint32_t) {
            OnHolderGone(session, number);
          });
      // Without a watch, the next search finds the holder, if it still lives.
      if (watch.ok()) watched->holders[number] = {.pidfd = std::move(holder.pidfd), .watch = *watch};
    }
    if (watched->holders.empty()) search_ = true;
  }
  for (const SessionId session : gone) watched_.erase(session);
  return gone;
}

void HolderWatch::OnHolderGone(SessionId session, uint64_t number) {
  UniqueFd pidfd;
  MutexLock lock(&mu_);
  const auto found = watched_.find(session);
  if (found == watched_.end()) return;
  const auto holder = found->second->holders.find(number);
  if (holder == found->second->holders.end()) return;
  loop_.Unwatch(holder->second.watch);
  pidfd = std::move(holder->second.pidfd);
  found->second->holders.erase(holder);
  if (!found->second->holders.empty()) return;
  search_ = true;
  news_.Signal();
}

}  // namespace berth::service
