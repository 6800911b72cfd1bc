#include "daemon/service/attach/fds_in_flight.h"

#include <linux/sock_diag.h>
#include <sys/socket.h>

#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "common/steady_clock.h"

#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

namespace berth::service {
namespace {

// The kernel's own bytes of each message exceed this number (768 for a small message on Linux 6).
constexpr size_t kLeastBytes = 512;
// A sweep is followed by a pause of this many times its duration: a user at its limit causes few of them.
constexpr int kPauseOfSweeps = 10;

// Returns the most messages that the peer of a Unix socket may not have received; 0 if the kernel does not know.
size_t UnreceivedOn(int socket) {
  uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t size = sizeof(memory);
  if (::getsockopt(socket, SOL_SOCKET, SO_MEMINFO, memory, &size) < 0) return 0;
  // While the peer receives a message, the kernel may still count one byte of it.
  return memory[SK_MEMINFO_WMEM_ALLOC] / kLeastBytes;
}

}  // namespace

bool FdsInFlight::Sweep(User& user) {
  const absl::Time begin = SteadyNow();
  if (begin < user.next_sweep) return false;
  for (auto at = user.sockets.begin(); at != user.sockets.end();) {
    Places& places = at->second;
    if (const size_t most = UnreceivedOn(at->first); places.size() > most) places.resize(most);
    at = places.empty() ? user.sockets.erase(at) : std::next(at);
  }
  const absl::Time end = SteadyNow();
  user.next_sweep = end + kPauseOfSweeps * (end - begin);
  return true;
}

void FdsInFlight::EraseIfUnused(uint32_t uid) {
  const auto user = users_.find(uid);
  if (user != users_.end() && user->second.sockets.empty()) users_.erase(user);
}

absl::Status FdsInFlight::Add(uint32_t uid, int socket) {
  MutexLock lock(&mu_);
  User& user = users_[uid];
  absl::StatusOr<UidQuota::Place> place = quota_.Take(uid);
  if (!place.ok() && Sweep(user)) place = quota_.Take(uid);
  if (place.ok()) user.sockets[socket].push_back(*std::move(place));
  EraseIfUnused(uid);
  return place.status();
}

void FdsInFlight::Adopt(uint32_t uid, int socket) {
  const size_t count = UnreceivedOn(socket);
  if (count == 0) return;
  MutexLock lock(&mu_);
  Places& places = users_[uid].sockets[socket];
  while (places.size() < count) places.push_back(quota_.TakeAnyway(uid));
}

bool FdsInFlight::Forget(uint32_t uid, int socket) {
  MutexLock lock(&mu_);
  return Erase(uid, socket, /*received_only=*/true);
}

void FdsInFlight::Drop(uint32_t uid, int socket) {
  MutexLock lock(&mu_);
  Erase(uid, socket, /*received_only=*/false);
}

bool FdsInFlight::Erase(uint32_t uid, int socket, bool received_only) {
  const auto user = users_.find(uid);
  if (user == users_.end()) return true;
  const auto found = user->second.sockets.find(socket);
  if (found == user->second.sockets.end()) return true;
  if (received_only && UnreceivedOn(socket) > 0) return false;
  user->second.sockets.erase(found);
  EraseIfUnused(uid);
  return true;
}

}  // namespace berth::service
