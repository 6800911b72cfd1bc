// Locks between processes of a node, Berth's and others', behind one interface.

#ifndef TESTS_BENCH_PEERS_PEER_LOCKS_H_
#define TESTS_BENCH_PEERS_PEER_LOCKS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth::bench {

// One client's lock. Used by one thread.
class PeerLock {
 public:
  virtual ~PeerLock() = default;
  // Waits for its turn.
  virtual absl::Status Acquire() = 0;
  // Requires: acquired.
  virtual absl::Status Release() = 0;
};

// Connects. `kind` and `where`:
//
//   berth   FOLDER     a permit of a pool of one
//   redis   PORT/KEY   SET NX, retried every 100 ms as redis-py's Lock does by default; released by a script
//   blpop   PORT/KEY   a token that is popped from a list and pushed back
//   etcd    PORT/NAME  its lock service, with a lease
//   flock   FILE       flock(2), as flock(1) takes it
absl::StatusOr<std::unique_ptr<PeerLock>> ConnectLock(const std::string& kind, const std::string& where);

// Creates the lock at the server, before the first client. Returns once the server is up. Errors: kUnavailable.
absl::Status PrepareLock(const std::string& kind, const std::string& where);

}  // namespace berth::bench

#endif  // TESTS_BENCH_PEERS_PEER_LOCKS_H_
