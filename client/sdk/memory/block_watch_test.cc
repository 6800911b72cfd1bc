#include "client/sdk/memory/block_watch.h"

#include <memory>
#include <thread>
#include <vector>

#include "common/notification.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

class BlockWatchTest : public ::testing::Test {
 protected:
  // Returns a listener that records each event of the block in `got`.
  std::shared_ptr<BlockListener> Listen(LeaseRecord& lease, std::vector<BlockEvent::What>* got) {
    return watch_.Watch(lease, [got](const BlockEvent& event) { got->push_back(event.what); });
  }

  BlockWatch watch_;
  LeaseRecord lease_;
};

using Events = std::vector<BlockEvent::What>;

TEST_F(BlockWatchTest, ListenerGetsFirstEventOnce) {
  Events got;
  const auto listener = Listen(lease_, &got);
  EXPECT_FALSE(watch_.CallBack()) << "there is no event yet";
  watch_.Notify(lease_, {.what = BlockEvent::kFreed});
  EXPECT_EQ(got, Events()) << "only CallBack() calls listeners";
  watch_.Notify(lease_, {.what = BlockEvent::kLost});
  EXPECT_TRUE(watch_.CallBack());
  EXPECT_EQ(got, Events({BlockEvent::kFreed}));
  watch_.Notify(lease_, {.what = BlockEvent::kEnded});
  EXPECT_FALSE(watch_.CallBack());
  EXPECT_EQ(got, Events({BlockEvent::kFreed}));
}

TEST_F(BlockWatchTest, EventBeforeWatchIsDelivered) {
  watch_.Notify(lease_, {.what = BlockEvent::kEnded, .end = {.reason = EndReason::kRevoked}});
  EXPECT_FALSE(watch_.CallBack()) << "no listener was there";
  BlockEvent got;
  const auto listener = watch_.Watch(lease_, [&got](const BlockEvent& event) { got = event; });
  EXPECT_EQ(got.what, BlockEvent::kLost) << "Watch() itself calls nothing";
  EXPECT_TRUE(watch_.CallBack());
  EXPECT_EQ(got.what, BlockEvent::kEnded);
  EXPECT_EQ(got.end.reason, EndReason::kRevoked);
  EXPECT_FALSE(watch_.CallBack());
}

TEST_F(BlockWatchTest, EachListenerGetsEventOfItsBlock) {
  LeaseRecord other;
  Events early, late, of_other;
  const auto first = Listen(lease_, &early);
  const auto second = Listen(lease_, &late);
  const auto third = Listen(other, &of_other);
  watch_.Notify(lease_, {.what = BlockEvent::kLost});
  watch_.Notify(other, {.what = BlockEvent::kFreed});
  EXPECT_TRUE(watch_.CallBack());
  EXPECT_EQ(early, Events({BlockEvent::kLost}));
  EXPECT_EQ(late, Events({BlockEvent::kLost}));
  EXPECT_EQ(of_other, Events({BlockEvent::kFreed}));
}

TEST_F(BlockWatchTest, ReleasedListenerGetsNothing) {
  Events got;
  auto before_event = Listen(lease_, &got);
  before_event.reset();
  // The list of a block that lives long holds no released listeners.
  const auto stays = Listen(lease_, &got);
  EXPECT_EQ(lease_.listeners.size(), 1u);
  auto before_call = Listen(lease_, &got);
  watch_.Notify(lease_, {.what = BlockEvent::kLost});
  before_call.reset();
  EXPECT_TRUE(watch_.CallBack());
  EXPECT_EQ(got, Events({BlockEvent::kLost})) << "one listener is left";
}

TEST_F(BlockWatchTest, CallbackMayReleaseListeners) {
  std::shared_ptr<BlockListener> own, next;
  const auto held = std::make_shared<int>(7);
  std::weak_ptr<int> captured = held;
  int read = 0;
  own = watch_.Watch(lease_, [&own, &next, &read, value = held](const BlockEvent&) {
    next.reset();
    own.reset();
    read = *value;
  });
  next = watch_.Watch(lease_, [](const BlockEvent&) { ADD_FAILURE() << "this listener was released before its call"; });
  watch_.Notify(lease_, {.what = BlockEvent::kLost});
  EXPECT_TRUE(watch_.CallBack());
  EXPECT_EQ(read, 7) << "the captures outlive the call in progress";
  EXPECT_EQ(captured.use_count(), 1) << "the watch holds no listener after the call";
}

TEST_F(BlockWatchTest, ListenerReleasedByOtherThreadOutlivesItsCall) {
  Notification entered, released;
  auto held = std::make_shared<int>(7);
  int read = 0;
  auto listener = watch_.Watch(lease_, [&, value = held](const BlockEvent&) {
    entered.Notify();
    released.WaitForNotification();
    read = *value;
  });
  watch_.Notify(lease_, {.what = BlockEvent::kLost});
  std::thread owner([&] {
    entered.WaitForNotification();
    listener.reset();
    released.Notify();
  });
  EXPECT_TRUE(watch_.CallBack());
  owner.join();
  EXPECT_EQ(read, 7);
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(BlockWatchTest, CallbackMayWatchAndNotify) {
  LeaseRecord other;
  Events got;
  std::shared_ptr<BlockListener> late, of_other = Listen(other, &got);
  const auto listener = watch_.Watch(lease_, [&](const BlockEvent&) {
    late = Listen(lease_, &got);
    watch_.Notify(other, {.what = BlockEvent::kFreed});
  });
  watch_.Notify(lease_, {.what = BlockEvent::kLost});
  EXPECT_TRUE(watch_.CallBack());
  EXPECT_EQ(got, Events()) << "the next CallBack() calls them";
  EXPECT_TRUE(watch_.CallBack());
  EXPECT_EQ(got, Events({BlockEvent::kLost, BlockEvent::kFreed}));
}

}  // namespace
}  // namespace berth::internal
