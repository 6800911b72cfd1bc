#include "daemon/service/single_poller.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace berth::service {
namespace {

// What gRPC 1.51 calls them, and how many it has (docs/design/0024). Should another one have others, none is found, and
// all go on working.
constexpr char kThreadName[] = "nexting_thread";
size_t ExpectedThreads() {
  return static_cast<size_t>(std::clamp(::sysconf(_SC_NPROCESSORS_CONF) / 2, 2L, 16L));
}
// A thread takes its name once it runs.
constexpr absl::Duration kPatience = absl::Milliseconds(50);

size_t CountThreads() {
  size_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    count += std::getline(file, name) && name == kThreadName ? 1 : 0;
  }
  return count;
}

size_t AwaitThreads() {
  const size_t expected = ExpectedThreads();
  const absl::Time deadline = absl::Now() + kPatience;
  size_t count = CountThreads();
  while (count < expected && absl::Now() < deadline) {
    absl::SleepFor(absl::Microseconds(100));
    count = CountThreads();
  }
  return count;
}

}  // namespace

SinglePoller::SinglePoller() : nowhere_(grpc::CreateChannel("", nullptr)) {
  grpc::GenericStub stub(nowhere_);
  for (size_t threads = AwaitThreads(); threads > 1; --threads) {
    Call& call = calls_.emplace_back();
    stub.UnaryCall(&call.context, "/berth.Rest", grpc::StubOptions(), &call.request, &call.response,
                   [this](const grpc::Status&) { Rest(); });
  }
}

SinglePoller::~SinglePoller() {
  MutexLock lock(&mu_);
  over_ = true;
  const auto empty = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return left_ == calls_.size(); };
  mu_.Await(absl::Condition(&empty));
}

void SinglePoller::Rest() {
  MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&over_));
  ++left_;
}

}  // namespace berth::service
