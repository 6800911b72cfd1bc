#include "daemon/broker/history_writer.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using core::LeaseEnd;
using core::LeaseKind;
using core::LeaseRecord;

LeaseRecord Permit(uint64_t id, uint32_t uid = 1000) {
  return {.kind = LeaseKind::kPermit, .id = id, .tenant = {.uid = uid}, .pool = "gpu-tests", .units = 1};
}

LeaseRecord End(LeaseRecord lease) {
  lease.end = LeaseEnd::kReleased;
  lease.ended_at = lease.granted_at;
  return lease;
}

class HistoryWriterTest : public testing::Test {
 protected:
  HistoryWriterTest() {
    std::string name = testing::TempDir() + "/history-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    options_ = {.folder = name, .size = MiB(8), .rows = 50'000, .incarnation = 9};
  }
  ~HistoryWriterTest() override {
    writer_.reset();
    std::filesystem::remove_all(options_.folder);
  }

  std::string path() const { return options_.folder + "/" + HistoryStore::kName; }
  void Start() {
    writer_.reset();
    writer_ = std::make_unique<HistoryWriter>(options_);
  }
  absl::StatusOr<HistoryWriter::Page> Ask(HistoryQuery query = {}) {
    if (query.rows == 0) query.rows = 100'000;
    std::promise<absl::StatusOr<HistoryWriter::Page>> answered;
    writer_->Query(query, [&](absl::StatusOr<HistoryWriter::Page> page) { answered.set_value(std::move(page)); });
    return answered.get_future().get();
  }
  size_t Count() {
    const auto page = Ask();
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? page->size() : 0;
  }
  static bool Eventually(const std::function<bool()>& condition) {
    for (const absl::Time enough = absl::Now() + absl::Seconds(60); absl::Now() < enough; std::this_thread::yield()) {
      if (condition()) return true;
    }
    return false;
  }

  HistoryStore::Options options_;
  std::unique_ptr<HistoryWriter> writer_;
};

TEST_F(HistoryWriterTest, QueryShowsEarlierAppends) {
  Start();
  for (uint64_t id = 1; id <= 5'000; ++id) {
    writer_->Append(Permit(id));
    if (id % 2 == 0) writer_->Append(End(Permit(id)));
  }
  EXPECT_EQ(Count(), 5'000u);
  EXPECT_EQ(writer_->unwritten(), 0u);
  EXPECT_EQ(writer_->fault(), "");
}

TEST_F(HistoryWriterTest, NextWriterEndsLeasesThatAreNotLive) {
  Start();
  writer_->Append(Permit(1));
  writer_->Append(Permit(2));
  Start();
  // Arrives before the broker reports which leases exist.
  writer_->Append(End(Permit(1)));
  writer_->Resume({Permit(3)});
  writer_->Append(Permit(4));
  const auto page = Ask();
  ASSERT_TRUE(page.ok()) << page.status();
  ASSERT_EQ(page->size(), 4u);
  EXPECT_EQ((*page)[0].lease.id, 4u);
  EXPECT_EQ((*page)[1].lease.id, 3u);
  EXPECT_EQ((*page)[2].lease.end, LeaseEnd::kUnseen);
  EXPECT_EQ((*page)[3].lease.end, LeaseEnd::kReleased);
}

TEST_F(HistoryWriterTest, RecordsWaitForDiskAndOverflowIsCounted) {
  // No folder can be created there.
  const std::string folder = options_.folder;
  options_.folder = folder + "/file/state";
  std::ofstream(folder + "/file") << "in the way";
  Start();
  // One user takes half of the places, the next user the rest.
  constexpr uint64_t kHalf = HistoryWriter::kWaiting / 2;
  for (uint64_t id = 1; id <= kHalf + 60; ++id) writer_->Append(Permit(id));
  EXPECT_EQ(writer_->unwritten(), 60u);
  for (uint64_t id = kHalf + 61; id <= 2 * kHalf + 100; ++id) writer_->Append(Permit(id, 1001));
  EXPECT_EQ(writer_->unwritten(), 100u);
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(writer_->fault(), options_.folder); })) << writer_->fault();
  EXPECT_TRUE(absl::IsInternal(Ask().status())) << Ask().status();
  std::filesystem::remove(folder + "/file");
  std::filesystem::create_directory(folder + "/file");
  EXPECT_TRUE(Eventually([&] { return writer_->fault().empty(); })) << writer_->fault();
  EXPECT_EQ(Count(), HistoryWriter::kWaiting);
  writer_->Append(Permit(HistoryWriter::kWaiting + 101));
  EXPECT_EQ(Count(), HistoryWriter::kWaiting + 1);
  EXPECT_EQ(writer_->unwritten(), 100u);
  options_.folder = folder;
}

TEST_F(HistoryWriterTest, UnreadableHistoryIsRenamedAndReplaced) {
  std::ofstream(path()) << "no database at all, and long enough to be looked at as one: " << std::string(1'000, '.');
  Start();
  writer_->Append(Permit(1));
  EXPECT_EQ(Count(), 1u);
  EXPECT_EQ(writer_->fault(), "");
  std::ifstream renamed(options_.folder + "/" + HistoryStore::kUnreadableName);
  std::string content;
  renamed >> content;
  EXPECT_EQ(content, "no");
}

// Queries that arrive while the writer handles an earlier one.
class WaitingQueriesTest : public HistoryWriterTest {
 protected:
  WaitingQueriesTest() {
    Start();
    Count();
    std::promise<void> begun;
    writer_->Query({.tenant = core::Tenant{.uid = 9}, .rows = 1}, [this, &begun](const auto&) {
      begun.set_value();
      go_on_.get_future().wait();
    });
    begun.get_future().wait();
  }
  ~WaitingQueriesTest() override {
    GoOn();
    writer_.reset();
  }

  void Query(const std::string& name, std::optional<uint32_t> uid) {
    HistoryQuery query = {.rows = 1};
    if (uid.has_value()) query.tenant = core::Tenant{.uid = *uid};
    writer_->Query(query, [this, name](const auto& page) {
      MutexLock lock(&mu_);
      if (IsRefusal(page.status(), Reason::kLimit)) {
        ++refused_[name];
      } else {
        served_.push_back(name);
      }
    });
  }
  // Returns the names of the first `count` queries served, in order.
  std::string Served(size_t count) {
    GoOn();
    EXPECT_TRUE(Eventually([&] {
      MutexLock lock(&mu_);
      return served_.size() >= count;
    }));
    MutexLock lock(&mu_);
    return absl::StrJoin(served_, " ");
  }
  int Refused(const std::string& name) {
    MutexLock lock(&mu_);
    return refused_[name];
  }

 private:
  void GoOn() {
    if (!std::exchange(gone_on_, true)) go_on_.set_value();
  }

  std::promise<void> go_on_;
  bool gone_on_ = false;
  Mutex mu_;
  std::vector<std::string> served_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> refused_ ABSL_GUARDED_BY(mu_);
};

TEST_F(WaitingQueriesTest, OperatorsPrecedeUsersTakingTurns) {
  for (int i = 0; i < 3; ++i) Query("a", 1000);
  Query("b", 1001);
  Query("operator", std::nullopt);
  EXPECT_EQ(Served(5), "operator a b a a");
}

TEST_F(WaitingQueriesTest, UserQueriesLeaveShareToOthers) {
  for (size_t i = 0; i < HistoryWriter::kUserQueries + 5; ++i) Query("a", 1000);
  EXPECT_EQ(Refused("a"), 5);
  Query("b", 1001);
  EXPECT_EQ(Refused("b"), 0);
  // Operators have places however many queries users have.
  for (uint32_t uid = 2'000; uid < 2'100; ++uid) {
    for (size_t i = 0; i < HistoryWriter::kUserQueries; ++i) Query("others", uid);
  }
  EXPECT_GT(Refused("others"), 0);
  for (size_t i = 0; i < HistoryWriter::kOperatorQueries + 1; ++i) Query("operator", std::nullopt);
  EXPECT_EQ(Refused("operator"), 1);
}

TEST_F(WaitingQueriesTest, UserIsAnsweredBesideEightFullUsers) {
  for (uint32_t uid = 1'000; uid < 1'008; ++uid) {
    for (size_t i = 0; i < HistoryWriter::kUserQueries; ++i) Query("full", uid);
  }
  Query("other", 2'000);
  EXPECT_EQ(Refused("other"), 0);
  // Each of the others has at most one query before it.
  const std::vector<std::string> served = absl::StrSplit(Served(9), ' ');
  EXPECT_EQ(std::count(served.begin(), served.begin() + 9, "other"), 1);
}

TEST_F(HistoryWriterTest, ZeroBytesDisableHistory) {
  options_.size = Bytes(0);
  Start();
  writer_->Append(Permit(1));
  EXPECT_TRUE(IsRefusal(Ask().status(), Reason::kUnsupported));
  EXPECT_EQ(writer_->unwritten(), 0u);
  writer_->Flush(absl::InfiniteDuration());
  EXPECT_FALSE(std::filesystem::exists(path()));
}

}  // namespace
}  // namespace berth
