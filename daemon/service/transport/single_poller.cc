#include "daemon/service/transport/single_poller.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
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

// gRPC 1.51's name for its callback threads, and their number (docs/design/0024). With another version that differs, no
// thread is found, and all continue to work.
constexpr char kThreadName[] = "nexting_thread";
size_t ExpectedThreads() {
  return static_cast<size_t>(std::clamp(::sysconf(_SC_NPROCESSORS_CONF) / 2, 2L, 16L));
}
// A thread sets its name after it starts: number of checks, 0.1 ms apart. Not an absolute deadline, which would last
// longer when the clock is set back.
constexpr int kLooks = 500;

// Orders the construction of a poller before the threads that park in it: gRPC does not order a call's start before its
// callback.
constinit std::atomic<uint64_t> made = 0;

size_t CountThreads() {
  size_t count = 0;
  std::error_code error;
  const std::filesystem::directory_iterator end;
  // Not a range-based loop, which throws if a thread ends meanwhile.
  for (std::filesystem::directory_iterator at("/proc/self/task", error); !error && at != end; at.increment(error)) {
    std::ifstream file(at->path() / "comm");
    std::string name;
    count += std::getline(file, name) && name == kThreadName ? 1 : 0;
  }
  return count;
}

size_t AwaitThreads() {
  const size_t expected = ExpectedThreads();
  size_t count = CountThreads();
  for (int look = 1; count < expected && look < kLooks; ++look) {
    absl::SleepFor(absl::Microseconds(100));
    count = CountThreads();
  }
  return count;
}

}  // namespace

SinglePoller::SinglePoller() : nowhere_(grpc::CreateChannel("", nullptr)) {
  made.fetch_add(1, std::memory_order_release);
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
  made.load(std::memory_order_acquire);
  MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&over_));
  ++left_;
}

}  // namespace berth::service
