#include "daemon/service/transport/grpc_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.grpc.pb.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "daemon/supervisor/processes/child_process.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel_posix.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// Blocks every call until the test ends it.
class WaitingService final : public v1::NodeService::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* context, const v1::GetNodeRequest*,
                                    v1::Node*) override {
    MutexLock lock(&mu_);
    waiting_.push_back(context->DefaultReactor());
    return waiting_.back();
  }

  // Ends the oldest call as soon as `calls` wait. Returns whether exactly that many came to wait.
  bool EndOneOf(size_t calls) {
    MutexLock lock(&mu_);
    const auto come = [this, calls]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return waiting_.size() >= calls; };
    if (!mu_.AwaitWithTimeout(absl::Condition(&come), kPatience)) return false;
    const bool exact = waiting_.size() == calls;
    waiting_.front()->Finish(grpc::Status::OK);
    waiting_.pop_front();
    return exact;
  }

 private:
  Mutex mu_;
  std::deque<grpc::ServerUnaryReactor*> waiting_ ABSL_GUARDED_BY(mu_);
};

class GrpcServerTest : public testing::Test {
 protected:
  static constexpr int kStreams = 4;

  void SetUp() override {
    std::vector<std::unique_ptr<grpc::Service>> services;
    auto service = std::make_unique<WaitingService>();
    service_ = service.get();
    services.push_back(std::move(service));
    server_ = *GrpcServer::Start(std::move(services), nullptr, {.streams_per_connection = kStreams});
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    server_->AddConnection(fds[0]);
    stub_ = v1::NodeService::NewStub(grpc::CreateInsecureChannelFromFd("test", fds[1]));
    // With its first answer the client has received the limit.
    Start();
    ASSERT_TRUE(service_->EndOneOf(1));
    ASSERT_TRUE(AllAnswered());
  }

  struct Call {
    grpc::ClientContext context;
    v1::Node response;
    grpc::Status status;
  };
  Call& Start(absl::Duration patience = kPatience) {
    Call& call = calls_.emplace_back();
    call.context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(patience));
    stub_->async()->GetNode(&call.context, &request_, &call.response, [this, &call](grpc::Status status) {
      MutexLock lock(&mu_);
      call.status = std::move(status);
      ++answered_;
    });
    return call;
  }
  bool AllAnswered() {
    MutexLock lock(&mu_);
    const auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return answered_ == calls_.size(); };
    return mu_.AwaitWithTimeout(absl::Condition(&all), kPatience);
  }

  WaitingService* service_ = nullptr;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::NodeService::Stub> stub_;
  const v1::GetNodeRequest request_;
  std::list<Call> calls_;

  Mutex mu_;
  size_t answered_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(GrpcServerTest, CallsBeyondStreamLimitWaitAndAreAnswered) {
  constexpr int kCalls = 5 * kStreams;
  for (int i = 0; i < kCalls; ++i) Start();
  for (int left = kCalls; left > 0; --left) {
    EXPECT_TRUE(service_->EndOneOf(static_cast<size_t>(std::min(left, kStreams)))) << left;
  }
  ASSERT_TRUE(AllAnswered());
  for (const Call& call : calls_) EXPECT_TRUE(call.status.ok()) << call.status.error_message();
}

TEST_F(GrpcServerTest, BrokerExitsWhenGrpcCannotWatchConnection) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // A regular file, which epoll cannot watch.
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EXIT(server_->AddConnection(file.get()), testing::ExitedWithCode(kExitForWant), "");
}

TEST_F(GrpcServerTest, CallWithoutStreamTimesOutAndConnectionContinues) {
  for (int i = 0; i < kStreams; ++i) Start();
  Call& late = Start(absl::Milliseconds(100));
  const absl::Time deadline = absl::Now() + kPatience;
  const auto received = [&] {
    MutexLock lock(&mu_);
    return answered_ == 2;
  };
  while (!received() && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  for (int left = kStreams; left > 0; --left) EXPECT_TRUE(service_->EndOneOf(static_cast<size_t>(left)));
  EXPECT_TRUE(AllAnswered());
  Start();
  EXPECT_TRUE(service_->EndOneOf(1));
  EXPECT_TRUE(AllAnswered());
}

}  // namespace
}  // namespace berth::service
