// RedisClient: one connection to a Redis server on this machine, with the features that a lock needs.

#ifndef TESTS_BENCH_PEERS_REDIS_CLIENT_H_
#define TESTS_BENCH_PEERS_REDIS_CLIENT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth::bench {

// Thread-compatible.
class RedisClient {
 public:
  // Errors: those of connect().
  static absl::StatusOr<RedisClient> Connect(int port);

  // Sends a command and waits for its answer. Returns its text, "" for nil; for an array its last element. Errors:
  // kInternal with Redis's message; kUnavailable at the end of the connection.
  absl::StatusOr<std::string> Call(const std::vector<std::string>& command);

 private:
  explicit RedisClient(UniqueFd socket) : socket_(std::move(socket)) {}
  absl::StatusOr<std::string> ReadReply();
  absl::StatusOr<std::string> ReadLine();
  absl::Status Fill();

  UniqueFd socket_;
  std::string unread_;
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_PEERS_REDIS_CLIENT_H_
