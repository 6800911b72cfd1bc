#include "daemon/core/request_memory.h"

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

const absl::StatusOr<Response> kAnswer = Response(ReleaseResult{.returned = true});

TEST(RequestMemoryTest, ARequestIsFreshThenPendingThenAnswered) {
  Journal journal;
  RequestMemory memory(ChannelId(1), 4, &journal);
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
  Journal journal;
  RequestMemory memory(ChannelId(1), 4, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 1}, 8).status(), Reason::kRequestReused));
  memory.Answer(1, kAnswer);
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 1}, 8).status(), Reason::kRequestReused));
  EXPECT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
}

TEST(RequestMemoryTest, AnErasedRequestIsFreshAgain) {
  Journal journal;
  RequestMemory memory(ChannelId(1), 4, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  memory.Erase(1);
  EXPECT_TRUE(memory.Admit({.sequence = 1}, 8)->fresh);
}

TEST(RequestMemoryTest, SettledAnswersAreDroppedAndPendingOnesOnceAnswered) {
  Journal journal;
  RequestMemory memory(ChannelId(1), 4, &journal);
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
  Journal journal;
  RequestMemory memory(ChannelId(1), 3, &journal);
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
  Journal journal;
  RequestMemory memory(ChannelId(1), 4, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 6, .answered_below = 6, .open = {5}}, 7).ok());
  EXPECT_TRUE(memory.Admit({.sequence = 5, .answered_below = 5}, 7)->fresh);
  EXPECT_TRUE(
      IsRefusal(memory.Admit({.sequence = 4, .answered_below = 4}, 7).status(), Reason::kRequestForgotten));
}

TEST(RequestMemoryTest, WhatWasSettledStaysSettled) {
  Journal journal;
  RequestMemory memory(ChannelId(1), 4, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 6, .answered_below = 6}, 7).ok());
  ASSERT_TRUE(memory.Admit({.sequence = 8, .answered_below = 8, .open = {5, 7, 9}}, 7).ok());
  EXPECT_TRUE(memory.Settled(5));
  EXPECT_FALSE(memory.Settled(7));
  EXPECT_FALSE(memory.Settled(9));
}

TEST(RequestMemoryTest, TooManyOpenOnesAreRefusedAndSettleNothing) {
  Journal journal;
  RequestMemory memory(ChannelId(1), 2, &journal);
  const auto refused = memory.Admit({.sequence = 9, .answered_below = 9, .open = {1, 2, 3}}, 7);
  EXPECT_TRUE(IsRefusal(refused.status(), Reason::kInvalidField));
  EXPECT_FALSE(memory.Settled(4));
}

TEST(RequestMemoryTest, TheLimitIsOverRequestsAndTombstonesAndKnownOnesPassIt) {
  Journal journal;
  RequestMemory memory(ChannelId(1), 2, &journal);
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
  Journal journal;
  RequestMemory memory(ChannelId(1), 2, &journal);
  ASSERT_TRUE(memory.Bury(5, ForgetOutcome::kRemembered).ok());
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 5}, 7).status(), Reason::kRequestForgotten));
  EXPECT_EQ(memory.Find(5)->outcome, ForgetOutcome::kRemembered);
  EXPECT_EQ(memory.Find(6), nullptr);
}

TEST(RequestMemoryTest, SequenceZeroIsRefusedAndPrunesNothing) {
  Journal journal;
  RequestMemory memory(ChannelId(1), 2, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  memory.Answer(1, kAnswer);
  EXPECT_TRUE(
      IsRefusal(memory.Admit({.sequence = 0, .answered_below = 9}, 7).status(), Reason::kInvalidField));
  EXPECT_EQ(memory.size(), 1);
}

TEST(RequestMemoryTest, AnotherBrokerAnswersAndRefusesAlike) {
  Journal journal;
  RequestMemory memory(ChannelId(1), 4, &journal), restored(ChannelId(1), 4, &journal);
  for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(memory.Admit({.sequence = i}, 7).ok());
  for (uint64_t i = 1; i <= 3; ++i) memory.Answer(i, kAnswer);
  ASSERT_TRUE(memory.Bury(3, ForgetOutcome::kUndone).ok());
  ASSERT_TRUE(memory.Admit({.sequence = 4, .answered_below = 3, .open = {2}}, 7).ok());
  std::vector<RowKey> keys;
  memory.ListRows(&keys);
  for (const RowKey& key : keys) {
    std::string row;
    ArchiveWriter writer(&row);
    if (key.part == RequestMemory::kSettled) {
      ASSERT_TRUE(memory.WriteSettled(writer));
      ArchiveReader reader(row);
      restored.ReadSettled(reader);
      EXPECT_TRUE(reader.Finish().ok());
      continue;
    }
    writer(*memory.Find(key.part));
    RequestMemory::Entry entry;
    ASSERT_TRUE(ReadArchive(row, &entry).ok());
    restored.Restore(key.part, std::move(entry));
  }
  EXPECT_TRUE(IsRefusal(restored.Admit({.sequence = 1}, 7).status(), Reason::kRequestForgotten));
  const auto second = restored.Admit({.sequence = 2}, 7);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->entry->state, RequestMemory::State::kAnswered);
  EXPECT_TRUE(IsRefusal(restored.Admit({.sequence = 3}, 7).status(), Reason::kRequestForgotten));
  EXPECT_EQ(restored.Find(3)->outcome, ForgetOutcome::kUndone);
  EXPECT_EQ(restored.Pending(), std::vector<uint64_t>{4});
  restored.Clear();
  EXPECT_EQ(restored.size(), 0u);
}

}  // namespace
}  // namespace berth::core
