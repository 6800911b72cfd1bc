#include "daemon/broker/event_loop.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace berth {
namespace {

struct Pipe {
  Pipe() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0) {
      read.reset(fds[0]);
      write.reset(fds[1]);
    }
  }
  void Poke() { EXPECT_EQ(::write(write.get(), "x", 1), 1); }
  UniqueFd read;
  UniqueFd write;
};

class EventLoopTest : public testing::Test {
 protected:
  void SetUp() override {
    loop_ = *EventLoop::Create();
    loop_->SetTimerCallback([this] {
      ++timer_fired_;
      loop_->Stop();
    });
  }
  std::unique_ptr<EventLoop> loop_;
  int timer_fired_ = 0;
};

TEST_F(EventLoopTest, ReadyFdCallsBack) {
  Pipe pipe;
  int calls = 0;
  ASSERT_TRUE(loop_
                  ->Watch(pipe.read.get(), EPOLLIN,
                          [&](uint32_t events) {
                            EXPECT_NE(events & EPOLLIN, 0u);
                            if (++calls == 3) loop_->Stop();
                          })
                  .ok());
  pipe.Poke();
  loop_->Run();
  EXPECT_EQ(calls, 3);
}

TEST_F(EventLoopTest, UnwatchedFdIsSilentInSameRound) {
  Pipe first;
  Pipe second;
  int calls = 0;
  std::vector<EventLoop::WatchId> ids;
  // The first callback removes both watches.
  const auto callback = [&](uint32_t) {
    ++calls;
    for (const EventLoop::WatchId id : ids) loop_->Unwatch(id);
    loop_->ArmTimer(EventLoop::SteadyNow());
  };
  ids.push_back(*loop_->Watch(first.read.get(), EPOLLIN, callback));
  ids.push_back(*loop_->Watch(second.read.get(), EPOLLIN, callback));
  first.Poke();
  second.Poke();
  loop_->Run();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, DestroyedCallbackMayUseLoop) {
  Pipe held;
  Pipe other;
  const EventLoop::WatchId remaining = *loop_->Watch(other.read.get(), EPOLLIN, [](uint32_t) {});
  std::shared_ptr<void> at_its_end(nullptr, [&](void*) {
    loop_->Unwatch(remaining);
    loop_->Close(std::move(held.write));
  });
  const EventLoop::WatchId id =
      *loop_->Watch(held.read.get(), EPOLLIN, [at_its_end = std::move(at_its_end)](uint32_t) {});
  loop_->Unwatch(id);
  loop_->ArmTimer(EventLoop::SteadyNow());
  other.Poke();
  loop_->Run();
  EXPECT_EQ(timer_fired_, 1);
  EXPECT_FALSE(held.write);
}

TEST_F(EventLoopTest, TimerFiresForPastTime) {
  loop_->ArmTimer(EventLoop::SteadyNow() - absl::Hours(1));
  loop_->Run();
  EXPECT_EQ(timer_fired_, 1);
}

TEST_F(EventLoopTest, LastArmingCounts) {
  loop_->ArmTimer(EventLoop::SteadyNow() + absl::Hours(1));
  loop_->ArmTimer(EventLoop::SteadyNow() + absl::Milliseconds(1));
  loop_->Run();
  EXPECT_EQ(timer_fired_, 1);
}

TEST_F(EventLoopTest, SimultaneousWakesCallBackOnce) {
  int calls = 0;
  loop_->SetWakeCallback([&] {
    ++calls;
    loop_->ArmTimer(EventLoop::SteadyNow());
  });
  loop_->Wake();
  loop_->Wake();
  loop_->Run();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, OtherThreadStopsLoop) {
  std::thread stopper([this] { loop_->Stop(); });
  loop_->Run();
  stopper.join();
}

}  // namespace
}  // namespace berth
