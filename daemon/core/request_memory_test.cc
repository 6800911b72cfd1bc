#include "daemon/core/request_memory.h"

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

const absl::StatusOr<Response> kAnswer = Response(ReleaseResult{.returned = true});

TEST(RequestMemoryTest, ARequestIsFreshThenPendingThenAnswered) {
  RequestMemory memory(ChannelId(1), 4);
  EXPECT_TRUE(memory.Admit({.sequence = 1}, 7)->fresh);
  const auto pending = memory.Admit({.sequence = 1}, 7);
  EXPECT_FALSE(pending->fresh);
  EXPECT_EQ(pending->entry->state, RequestMemory::State::kPending);
  EXPECT_EQ(memory.Pending(), std::vector<uint64_t>{1});
  memory.Answer(1, kAnswer);
  const auto answered = memory.Admit({.sequence = 1}, 7);
  EXPECT_EQ(answered->entry->state, RequestMemory::State::kAnswered);
  EXPECT_TRUE(std::get<ReleaseResult>(*answered->entry->answer).returned);
  EXPECT_TRUE(memory.Pending().empty());
}

TEST(RequestMemoryTest, AnotherPayloadIsReusedWhetherPendingOrAnswered) {
  RequestMemory memory(ChannelId(1), 4);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 1}, 8).status(), Reason::kRequestReused));
  memory.Answer(1, kAnswer);
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 1}, 8).status(), Reason::kRequestReused));
  EXPECT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
}

TEST(RequestMemoryTest, AnErasedRequestIsFreshAgain) {
  RequestMemory memory(ChannelId(1), 4);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  memory.Erase(1);
  EXPECT_TRUE(memory.Admit({.sequence = 1}, 8)->fresh);
}

TEST(RequestMemoryTest, SettledAnswersAreDroppedAndPendingOnesOnceAnswered) {
  RequestMemory memory(ChannelId(1), 4);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(memory.Admit({.sequence = i}, 7).ok());
  memory.Answer(1, kAnswer);
  ASSERT_TRUE(memory.Admit({.sequence = 4, .answered_below = 3}, 7).ok());
  EXPECT_EQ(memory.size(), 3);
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 1}, 7).status(), Reason::kRequestForgotten));
  EXPECT_TRUE(memory.Admit({.sequence = 2}, 7).ok());
  memory.Answer(2, kAnswer);
  EXPECT_EQ(memory.size(), 2);
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 2}, 7).status(), Reason::kRequestForgotten));
  // An older mark takes nothing back.
  ASSERT_TRUE(memory.Admit({.sequence = 3, .answered_below = 1}, 7).ok());
  EXPECT_TRUE(memory.Settled(2));
  EXPECT_FALSE(memory.Settled(3));
}

TEST(RequestMemoryTest, OneThatIsOpenKeepsNoOthersAnswers) {
  RequestMemory memory(ChannelId(1), 3);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  for (uint64_t i = 2; i <= 50; ++i) {
    ASSERT_TRUE(memory.Admit({.sequence = i, .answered_below = i, .open = {1}}, 7).ok()) << i;
    memory.Answer(i, kAnswer);
  }
  EXPECT_EQ(memory.size(), 2);
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 49}, 7).status(), Reason::kRequestForgotten));
  memory.Answer(1, kAnswer);
  EXPECT_EQ(memory.Admit({.sequence = 1}, 7)->entry->state, RequestMemory::State::kAnswered);
}

TEST(RequestMemoryTest, AnOpenOneMayArriveAfterThoseThatNameIt) {
  RequestMemory memory(ChannelId(1), 4);
  ASSERT_TRUE(memory.Admit({.sequence = 6, .answered_below = 6, .open = {5}}, 7).ok());
  EXPECT_TRUE(memory.Admit({.sequence = 5, .answered_below = 5}, 7)->fresh);
  EXPECT_TRUE(
      IsRefusal(memory.Admit({.sequence = 4, .answered_below = 4}, 7).status(), Reason::kRequestForgotten));
}

TEST(RequestMemoryTest, WhatWasSettledStaysSettled) {
  RequestMemory memory(ChannelId(1), 4);
  ASSERT_TRUE(memory.Admit({.sequence = 6, .answered_below = 6}, 7).ok());
  ASSERT_TRUE(memory.Admit({.sequence = 8, .answered_below = 8, .open = {5, 7, 9}}, 7).ok());
  EXPECT_TRUE(memory.Settled(5));
  EXPECT_FALSE(memory.Settled(7));
  EXPECT_FALSE(memory.Settled(9));
}

TEST(RequestMemoryTest, TooManyOpenOnesAreRefusedAndSettleNothing) {
  RequestMemory memory(ChannelId(1), 2);
  const auto refused = memory.Admit({.sequence = 9, .answered_below = 9, .open = {1, 2, 3}}, 7);
  EXPECT_TRUE(IsRefusal(refused.status(), Reason::kInvalidField));
  EXPECT_FALSE(memory.Settled(4));
}

TEST(RequestMemoryTest, TheLimitIsOverRequestsAndTombstonesAndKnownOnesPassIt) {
  RequestMemory memory(ChannelId(1), 2);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  ASSERT_TRUE(memory.Admit({.sequence = 2}, 7).ok());
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 3}, 7).status(), Reason::kLimit));
  EXPECT_TRUE(memory.Admit({.sequence = 2}, 7).ok());
  EXPECT_TRUE(memory.Bury(8, ForgetOutcome::kRemembered).ok());
  EXPECT_TRUE(memory.Bury(9, ForgetOutcome::kRemembered).ok());
  EXPECT_TRUE(IsRefusal(memory.Bury(10, ForgetOutcome::kRemembered), Reason::kLimit));
  memory.Answer(1, kAnswer);
  EXPECT_TRUE(memory.Bury(1, ForgetOutcome::kUndone).ok());
  EXPECT_EQ(memory.size(), 4);
}

TEST(RequestMemoryTest, AForgottenRequestIsRefusedAndSaysWhatWasDone) {
  RequestMemory memory(ChannelId(1), 2);
  ASSERT_TRUE(memory.Bury(5, ForgetOutcome::kRemembered).ok());
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 5}, 7).status(), Reason::kRequestForgotten));
  EXPECT_EQ(memory.Find(5)->outcome, ForgetOutcome::kRemembered);
  EXPECT_EQ(memory.Find(6), nullptr);
}

TEST(RequestMemoryTest, SequenceZeroIsRefusedAndPrunesNothing) {
  RequestMemory memory(ChannelId(1), 2);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  memory.Answer(1, kAnswer);
  EXPECT_TRUE(
      IsRefusal(memory.Admit({.sequence = 0, .answered_below = 9}, 7).status(), Reason::kInvalidField));
  EXPECT_EQ(memory.size(), 1);
}

}  // namespace
}  // namespace berth::core
