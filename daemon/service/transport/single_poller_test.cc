#include "daemon/service/transport/single_poller.h"

#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.grpc.pb.h"
#include "common/mutex.h"
#include "daemon/service/transport/grpc_server.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel_posix.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// Records the threads that it is called on, and holds each until a number of threads are in it, or for a time.
class MeetingService final : public v1::NodeService::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* context, const v1::GetNodeRequest*,
                                    v1::Node*) override {
    {
      MutexLock lock(&mu_);
      threads_.insert(std::this_thread::get_id());
      ++inside_;
      const auto met = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return inside_ >= wanted_; };
      met_ = mu_.AwaitWithTimeout(absl::Condition(&met), patience_) && met_;
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  // From now on, holds each call until `threads` threads are in it, or for `patience`.
  void Want(int threads, absl::Duration patience) {
    MutexLock lock(&mu_);
    threads_.clear();
    inside_ = 0;
    met_ = true;
    wanted_ = threads;
    patience_ = patience;
  }
  size_t threads() const {
    MutexLock lock(&mu_);
    return threads_.size();
  }
  bool met() const {
    MutexLock lock(&mu_);
    return met_;
  }

 private:
  mutable Mutex mu_;
  std::set<std::thread::id> threads_ ABSL_GUARDED_BY(mu_);
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
  int wanted_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration patience_ ABSL_GUARDED_BY(mu_);
  bool met_ ABSL_GUARDED_BY(mu_) = true;
};

class SinglePollerTest : public testing::Test {
 protected:
  static constexpr int kClients = 4;

  void SetUp() override {
    std::vector<std::unique_ptr<grpc::Service>> services;
    auto service = std::make_unique<MeetingService>();
    service_ = service.get();
    services.push_back(std::move(service));
    server_ = *GrpcServer::Start(std::move(services), nullptr);
    for (int i = 0; i < kClients; ++i) {
      int fds[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      server_->AddConnection(fds[0]);
      stubs_.push_back(v1::NodeService::NewStub(grpc::CreateInsecureChannelFromFd("test", fds[1])));
    }
  }

  // Makes each client call `times` times, all concurrently. Returns the number of answered calls.
  int CallAtOnce(int times) {
    std::vector<int> answered(kClients);
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i) {
      clients.emplace_back([&, i] {
        for (int k = 0; k < times; ++k) {
          grpc::ClientContext context;
          context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(kPatience));
          v1::Node node;
          answered[i] += stubs_[i]->GetNode(&context, v1::GetNodeRequest(), &node).ok() ? 1 : 0;
        }
      });
    }
    int all = 0;
    for (int i = 0; i < kClients; ++i) {
      clients[i].join();
      all += answered[i];
    }
    return all;
  }

  MeetingService* service_ = nullptr;
  std::unique_ptr<GrpcServer> server_;
  std::vector<std::unique_ptr<v1::NodeService::Stub>> stubs_;
};

TEST_F(SinglePollerTest, AllCallsRunOnSingleThread) {
  const SinglePoller poller;
  EXPECT_GE(poller.resting(), 1u);
  // A thread that was busy with other work is parked once that work is done.
  const absl::Time deadline = absl::Now() + kPatience;
  do {
    service_->Want(1, absl::ZeroDuration());
    EXPECT_EQ(CallAtOnce(100), 100 * kClients);
  } while (service_->threads() != 1 && absl::Now() < deadline);
  service_->Want(1, absl::ZeroDuration());
  EXPECT_EQ(CallAtOnce(500), 500 * kClients);
  EXPECT_EQ(service_->threads(), 1u);
}

TEST_F(SinglePollerTest, ManyThreadsServeAfterPollerEnds) {
  {
    const SinglePoller poller;
    service_->Want(2, absl::Milliseconds(50));
    EXPECT_EQ(CallAtOnce(1), kClients);
    EXPECT_FALSE(service_->met()) << "two calls are served at once";
  }
  service_->Want(2, kPatience);
  EXPECT_EQ(CallAtOnce(1), kClients);
  EXPECT_TRUE(service_->met()) << "a thread still rests";
}

TEST_F(SinglePollerTest, PollerStartsAndStopsRepeatedly) {
  for (int life = 0; life < 50; ++life) {
    const SinglePoller poller;
    service_->Want(1, absl::ZeroDuration());
    EXPECT_EQ(CallAtOnce(1), kClients);
  }
  service_->Want(1, absl::ZeroDuration());
  EXPECT_EQ(CallAtOnce(10), 10 * kClients);
}

TEST(SinglePollerWithoutAServerTest, PollerWithoutThreadsRestsNone) { EXPECT_EQ(SinglePoller().resting(), 0u); }

}  // namespace
}  // namespace berth::service
