#include "daemon/broker/history_keeper.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/error.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using core::LeaseEnd;
using core::LeaseKind;
using core::LeaseRecord;

LeaseRecord Permit(uint64_t id) {
  return {.kind = LeaseKind::kPermit, .id = id, .tenant = {.uid = 1000}, .pool = "gpu-tests", .units = 1};
}

LeaseRecord End(LeaseRecord lease) {
  lease.end = LeaseEnd::kReleased;
  lease.ended_at = lease.granted_at;
  return lease;
}

class HistoryKeeperTest : public testing::Test {
 protected:
  HistoryKeeperTest() {
    std::string name = testing::TempDir() + "/keeper-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    options_ = {.folder = name, .size = MiB(8), .rows = 50'000, .incarnation = 9};
  }
  ~HistoryKeeperTest() override {
    keeper_.reset();
    std::filesystem::remove_all(options_.folder);
  }

  std::string path() const { return options_.folder + "/" + HistoryStore::kName; }
  void Start() {
    keeper_.reset();
    keeper_ = std::make_unique<HistoryKeeper>(options_);
  }
  absl::StatusOr<HistoryKeeper::Page> Ask(HistoryQuery query = {}) {
    if (query.rows == 0) query.rows = 100'000;
    std::promise<absl::StatusOr<HistoryKeeper::Page>> answered;
    keeper_->Query(query, [&](absl::StatusOr<HistoryKeeper::Page> page) { answered.set_value(std::move(page)); });
    return answered.get_future().get();
  }
  size_t Count() {
    const auto page = Ask();
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? page->size() : 0;
  }
  static bool Eventually(const std::function<bool()>& condition) {
    for (const absl::Time enough = absl::Now() + absl::Seconds(30); absl::Now() < enough; std::this_thread::yield()) {
      if (condition()) return true;
    }
    return false;
  }

  HistoryStore::Options options_;
  std::unique_ptr<HistoryKeeper> keeper_;
};

TEST_F(HistoryKeeperTest, AQueryShowsWhatWasAppendedBefore) {
  Start();
  for (uint64_t id = 1; id <= 5'000; ++id) {
    keeper_->Append(Permit(id));
    if (id % 2 == 0) keeper_->Append(End(Permit(id)));
  }
  EXPECT_EQ(Count(), 5'000u);
  EXPECT_EQ(keeper_->unwritten(), 0u);
  EXPECT_EQ(keeper_->fault(), "");
}

TEST_F(HistoryKeeperTest, ItOutlivesItsKeeperAndTheNextEndsWhatIsNotOut) {
  Start();
  keeper_->Append(Permit(1));
  keeper_->Append(Permit(2));
  Start();
  // Heard before the broker says what is out.
  keeper_->Append(End(Permit(1)));
  keeper_->Resume({Permit(3)});
  keeper_->Append(Permit(4));
  const auto page = Ask();
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->size(), 4u);
  EXPECT_EQ((*page)[0].lease.id, 4u);
  EXPECT_EQ((*page)[1].lease.id, 3u);
  EXPECT_EQ((*page)[2].lease.end, LeaseEnd::kUnseen);
  EXPECT_EQ((*page)[3].lease.end, LeaseEnd::kReleased);
}

TEST_F(HistoryKeeperTest, WhatTheDiskDoesNotTakeWaitsAndPastTheBoundIsCounted) {
  // Nobody can make a folder there.
  const std::string folder = options_.folder;
  options_.folder = folder + "/file/state";
  std::ofstream(folder + "/file") << "in the way";
  Start();
  for (uint64_t id = 1; id <= HistoryKeeper::kWaiting + 100; ++id) keeper_->Append(Permit(id));
  EXPECT_EQ(keeper_->unwritten(), 100u);
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(keeper_->fault(), options_.folder); })) << keeper_->fault();
  EXPECT_TRUE(absl::IsInternal(Ask().status())) << Ask().status();
  std::filesystem::remove(folder + "/file");
  std::filesystem::create_directory(folder + "/file");
  EXPECT_TRUE(Eventually([&] { return keeper_->fault().empty(); })) << keeper_->fault();
  EXPECT_EQ(Count(), HistoryKeeper::kWaiting);
  keeper_->Append(Permit(HistoryKeeper::kWaiting + 101));
  EXPECT_EQ(Count(), HistoryKeeper::kWaiting + 1);
  EXPECT_EQ(keeper_->unwritten(), 100u);
  options_.folder = folder;
}

TEST_F(HistoryKeeperTest, WhatCannotBeReadIsPutAsideAndBegunAnew) {
  std::ofstream(path()) << "no database at all, and long enough to be looked at as one: " << std::string(1'000, '.');
  Start();
  keeper_->Append(Permit(1));
  EXPECT_EQ(Count(), 1u);
  EXPECT_EQ(keeper_->fault(), "");
  std::ifstream aside(options_.folder + "/" + HistoryStore::kAsideName);
  std::string word;
  aside >> word;
  EXPECT_EQ(word, "no");
}

TEST_F(HistoryKeeperTest, TooManyQueriesOfOneTenantAreRefusedAndOthersAreNot) {
  Start();
  Count();
  std::vector<std::promise<absl::Status>> answers(HistoryKeeper::kTenantQueries * 4);
  // All of them come before the keeper has had the time to serve one.
  for (std::promise<absl::Status>& answer : answers) {
    keeper_->Query({.tenant = core::Tenant{.uid = 1}, .rows = 1},
                   [&answer](const auto& page) { answer.set_value(page.status()); });
  }
  EXPECT_TRUE(Ask({.tenant = core::Tenant{.uid = 2}}).ok());
  EXPECT_TRUE(Ask().ok());
  size_t refused = 0;
  for (std::promise<absl::Status>& answer : answers) {
    const absl::Status status = answer.get_future().get();
    refused += IsRefusal(status, Reason::kLimit) ? 1 : 0;
    EXPECT_TRUE(status.ok() || IsRefusal(status, Reason::kLimit)) << status;
  }
  EXPECT_GE(refused, HistoryKeeper::kTenantQueries);
}

TEST_F(HistoryKeeperTest, WithoutBytesThereIsNone) {
  options_.size = Bytes(0);
  Start();
  keeper_->Append(Permit(1));
  EXPECT_TRUE(IsRefusal(Ask().status(), Reason::kUnsupported));
  EXPECT_EQ(keeper_->unwritten(), 0u);
  keeper_->Flush(absl::InfiniteDuration());
  EXPECT_FALSE(std::filesystem::exists(path()));
}

}  // namespace
}  // namespace berth
