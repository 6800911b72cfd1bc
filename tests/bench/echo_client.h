// EchoClient: the reference's client, with the channel and the metadata of the SDK's calls.

#ifndef TESTS_BENCH_ECHO_CLIENT_H_
#define TESTS_BENCH_ECHO_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "tests/bench/echo.grpc.pb.h"

namespace berth::bench {

// Thread-safe.
class EchoClient {
 public:
  explicit EchoClient(const std::string& socket);

  // Makes one bare call: sends 32 bytes of metadata and 32 of payload, receives the payload. Waits for the connection.
  absl::Status Call();

 private:
  const std::unique_ptr<EchoService::Stub> stub_;
  const std::string credentials_;
  const EchoRequest request_;
};

// Calls that wait at an echo server until this is destroyed.
class EchoWaiters {
 public:
  // Sends `calls` calls over `connections` connections. Returns before all have arrived.
  EchoWaiters(const std::string& socket, uint64_t connections, uint64_t calls);
  ~EchoWaiters();

  // Number of calls that the server has not ended.
  uint64_t open() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting;

  const EchoRequest request_;
  std::vector<std::unique_ptr<EchoService::Stub>> stubs_;
  std::vector<std::unique_ptr<Waiting>> calls_;
  Mutex mu_;
  CondVar changed_;
  uint64_t open_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_ECHO_CLIENT_H_
