#include "daemon/core/requests/request_memory.h"

#include <string>

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

const absl::StatusOr<Response> kAnswer = Response(ReleaseResult{.returned = true});

TEST(RequestMemoryTest, RequestIsFreshThenPendingThenAnswered) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 4}, &journal);
  EXPECT_TRUE(memory.Admit({.sequence = 1}, 7)->fresh);
  const auto pending = memory.Admit({.sequence = 1}, 7);
  EXPECT_FALSE(pending->fresh);
  EXPECT_EQ(pending->entry->state, RequestMemory::State::kPending);
  EXPECT_EQ(memory.Pending(), std::vector<uint64_t>{1});
  memory.Answer(1, kAnswer);
  const auto answered = memory.Admit({.sequence = 1}, 7);
  EXPECT_EQ(answered->entry->state, RequestMemory::State::kAnswered);
  EXPECT_TRUE(std::get<ReleaseResult>(*answered->entry->answer()).returned);
  EXPECT_TRUE(memory.Pending().empty());
}

TEST(RequestMemoryTest, OtherPayloadIsReusedPendingOrAnswered) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 4}, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 1}, 8).status(), Reason::kRequestReused));
  memory.Answer(1, kAnswer);
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 1}, 8).status(), Reason::kRequestReused));
  EXPECT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
}

TEST(RequestMemoryTest, ErasedRequestIsFreshAgain) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 4}, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  memory.Erase(1);
  EXPECT_TRUE(memory.Admit({.sequence = 1}, 8)->fresh);
}

TEST(RequestMemoryTest, SettledAnswersAreDroppedPendingOnceAnswered) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 4}, &journal);
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(memory.Admit({.sequence = i}, 7).ok());
  memory.Answer(1, kAnswer);
  ASSERT_TRUE(memory.Admit({.sequence = 4, .answered_below = 3}, 7).ok());
  EXPECT_EQ(memory.size(), 3);
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 1}, 7).status(), Reason::kRequestForgotten));
  EXPECT_TRUE(memory.Admit({.sequence = 2}, 7).ok());
  memory.Answer(2, kAnswer);
  EXPECT_EQ(memory.size(), 2);
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 2}, 7).status(), Reason::kRequestForgotten));
  // An older tag does not undo the settled sequences.
  ASSERT_TRUE(memory.Admit({.sequence = 3, .answered_below = 1}, 7).ok());
  EXPECT_TRUE(memory.Settled(2));
  EXPECT_FALSE(memory.Settled(3));
}

TEST(RequestMemoryTest, OpenRequestRetainsNoOtherAnswers) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 3}, &journal);
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

TEST(RequestMemoryTest, OpenRequestMayArriveAfterLaterRequests) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 4}, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 6, .answered_below = 6, .open = {5}}, 7).ok());
  EXPECT_TRUE(memory.Admit({.sequence = 5, .answered_below = 5}, 7)->fresh);
  EXPECT_TRUE(
      IsRefusal(memory.Admit({.sequence = 4, .answered_below = 4}, 7).status(), Reason::kRequestForgotten));
}

TEST(RequestMemoryTest, SettledRequestStaysSettled) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 4}, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 6, .answered_below = 6}, 7).ok());
  ASSERT_TRUE(memory.Admit({.sequence = 8, .answered_below = 8, .open = {5, 7, 9}}, 7).ok());
  EXPECT_TRUE(memory.Settled(5));
  EXPECT_FALSE(memory.Settled(7));
  EXPECT_FALSE(memory.Settled(9));
}

TEST(RequestMemoryTest, TooManyOpenRequestsAreRejected) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 2}, &journal);
  const auto refused = memory.Admit({.sequence = 9, .answered_below = 9, .open = {1, 2, 3}}, 7);
  EXPECT_TRUE(IsRefusal(refused.status(), Reason::kInvalidField));
  EXPECT_FALSE(memory.Settled(4));
}

TEST(RequestMemoryTest, LimitCoversRequestsAndTombstonesNotKnownOnes) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 2}, &journal);
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

TEST(RequestMemoryTest, ForgottenRequestIsRejectedWithOutcome) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 2}, &journal);
  ASSERT_TRUE(memory.Bury(5, ForgetOutcome::kRemembered).ok());
  EXPECT_TRUE(IsRefusal(memory.Admit({.sequence = 5}, 7).status(), Reason::kRequestForgotten));
  EXPECT_EQ(memory.Find(5)->outcome, ForgetOutcome::kRemembered);
  EXPECT_EQ(memory.Find(6), nullptr);
}

TEST(RequestMemoryTest, SequenceZeroIsRejectedAndPrunesNothing) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 2}, &journal);
  ASSERT_TRUE(memory.Admit({.sequence = 1}, 7).ok());
  memory.Answer(1, kAnswer);
  EXPECT_TRUE(
      IsRefusal(memory.Admit({.sequence = 0, .answered_below = 9}, 7).status(), Reason::kInvalidField));
  EXPECT_EQ(memory.size(), 1);
}

TEST(RequestMemoryTest, RestoredMemoryAnswersAlike) {
  Journal journal;
  RequestMemory memory(ChannelId(1), {.per_channel = 4}, &journal),
      restored(ChannelId(1), {.per_channel = 4}, &journal);
  for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(memory.Admit({.sequence = i}, 7).ok());
  for (uint64_t i = 1; i <= 3; ++i) memory.Answer(i, kAnswer);
  ASSERT_TRUE(memory.Bury(3, ForgetOutcome::kUndone).ok());
  ASSERT_TRUE(memory.Admit({.sequence = 4, .answered_below = 3, .open = {2}}, 7).ok());
  std::vector<RecordKey> keys;
  memory.ListRecords(&keys);
  for (const RecordKey& key : keys) {
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

// A bound of the memory, and its name in the refusal.
struct WeightCase {
  const char* what;
  AnswerLimits limits;
  uint64_t all = SharedCount::kUnlimited;
};

class AnswerWeightTest : public ::testing::TestWithParam<WeightCase> {};

TEST_P(AnswerWeightTest, FullMemoryRejectsUntilAnswersAreSettled) {
  Journal journal;
  SharedCount all("answer_bytes", GetParam().all, 0);
  uint64_t session = 0;
  RequestMemory memory(ChannelId(1), GetParam().limits, &journal);
  memory.SetAccount({.session = &session, .all = &all, .claimant = {.user = 7}});
  const absl::StatusOr<Response> refusal =
      Refuse(Reason::kDenied, "{name}", {{"name", std::string(1'000, 'x')}});
  uint64_t sequence = 0;
  absl::Status full;
  while (full.ok() && sequence < 100) {
    full = memory.Admit({.sequence = ++sequence}, 7).status();
    if (full.ok()) memory.Answer(sequence, refusal);
  }
  ASSERT_TRUE(IsRefusal(full, Reason::kLimit)) << full;
  EXPECT_EQ(NamedValueOf(full, "what"), GetParam().what);
  EXPECT_GE(memory.weight(), 4'000u);
  EXPECT_LE(memory.weight(), 8'000u);
  EXPECT_EQ(session, memory.weight());
  EXPECT_EQ(all.CountOf(7), memory.weight());
  // A retry still gets its answer. Unknown sequences can no longer be forgotten either.
  EXPECT_EQ(memory.Admit({.sequence = 1}, 7)->entry->answer().status(), refusal.status());
  EXPECT_TRUE(IsRefusal(memory.Bury(1'000, ForgetOutcome::kRemembered), Reason::kLimit));
  EXPECT_TRUE(memory.Bury(1, ForgetOutcome::kNothingToDo).ok()) << "its answer frees capacity for it";
  EXPECT_TRUE(memory.Admit({.sequence = sequence, .answered_below = sequence}, 7).ok());
  EXPECT_EQ(memory.weight(), RequestMemory::kEntryWeight);
  memory.Clear();
  EXPECT_EQ(session, 0u);
  EXPECT_EQ(all.of_users(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Bounds, AnswerWeightTest,
    ::testing::Values(WeightCase{.what = "answer_bytes_per_channel", .limits = {.bytes_per_channel = Bytes(5'000)}},
                      WeightCase{.what = "answer_bytes_per_session", .limits = {.bytes_per_session = Bytes(5'000)}},
                      WeightCase{.what = "answer_bytes", .limits = {}, .all = 10'000}),
    [](const ::testing::TestParamInfo<WeightCase>& info) { return std::string(info.param.what); });

}  // namespace
}  // namespace berth::core
