// EchoClient: the yardstick's client, with the channel and the metadata that the SDK's calls have.

#ifndef TESTS_BENCH_ECHO_CLIENT_H_
#define TESTS_BENCH_ECHO_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tests/bench/echo.grpc.pb.h"

namespace berth::bench {

// Thread-safe.
class EchoClient {
 public:
  explicit EchoClient(const std::string& socket);

  // One bare call: 32 bytes of metadata and 32 of payload there, the payload back. Waits for the connection.
  absl::Status Call();

 private:
  const std::unique_ptr<EchoService::Stub> stub_;
  const std::string credentials_;
  const EchoRequest request_;
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_ECHO_CLIENT_H_
