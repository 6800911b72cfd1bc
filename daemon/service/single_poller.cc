#include "daemon/service/single_poller.h"

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

// What gRPC 1.51 calls them, and how many it has (docs/design/0024). Should another one have others, none is found, and
// all go on working.
constexpr char kThreadName[] = "nexting_thread";
size_t ExpectedThreads() {
  return static_cast<size_t>(std::clamp(::sysconf(_SC_NPROCESSORS_CONF) / 2, 2L, 16L));
}
// A thread takes its name once it runs: so many looks, a tenth of a millisecond apart. Not until a time: that would
// last for as long as somebody sets the clock back.
constexpr int kLooks = 500;

// Orders the making of one before what rests in it: gRPC does not promise that of a call's start and its callback.
constinit std::atomic<uint64_t> made = 0;

size_t CountThreads() {
  size_t count = 0;
  std::error_code error;
  const std::filesystem::directory_iterator end;
  // Not by a range, which throws where a thread ends meanwhile.
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
