#include "daemon/supervisor/fd_store/service_manager_fd_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/memfd.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"

namespace berth {
namespace {

using fd_store::Key;
using fd_store::KeyOf;
using fd_store::Kind;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

constexpr uint64_t kNode = 7;

std::string Stored(Key key) { return absl::StrCat("FDSTORE=1\nFDPOLL=0\nFDNAME=", ServiceManagerFdStore::NameOf(key)); }

class ServiceManagerFdStoreTest : public ::testing::Test {
 protected:
  ServiceManagerFdStoreTest() : made_(*StoreRecord::Create(kNode)), store_(std::move(made_.second), Sender()) {}

  ServiceManagerFdStore::Send Sender() {
    return [this](const std::string& state, int fd) {
      if (!taken_.ok()) return taken_;
      messages_.push_back(state);
      // The test's manager completes a barrier only when the test does so.
      if (state == "BARRIER=1") barriers_.emplace_back(::dup(fd));
      return absl::OkStatus();
    };
  }

  void Hold(Key key) {
    held_[key] = *CreateMemfd("test", 0);
    store_.Put(now_, key);
  }
  bool Drop(Key key) {
    held_.erase(key);
    return store_.Drop(now_, key);
  }
  // Returns the messages that were sent.
  std::vector<std::string> Attend() {
    messages_.clear();
    over_ = store_.Attend(now_, held_);
    return messages_;
  }
  // Calls Attend() until no message is due. Returns the number of messages.
  size_t SendAll() {
    size_t sent = 0;
    while (store_.wake() != MonotonicTime::max() && store_.fd() < 0) {
      now_ = std::max(now_, store_.wake());
      sent += Attend().size();
    }
    return sent;
  }

  MonotonicTime now_ = MonotonicTime(seconds(1000));
  absl::Status taken_;
  std::vector<std::string> messages_;
  std::vector<UniqueFd> barriers_;
  std::vector<Key> over_;
  HeldFds held_;
  std::pair<UniqueFd, StoreRecord> made_;
  ServiceManagerFdStore store_;
};

TEST_F(ServiceManagerFdStoreTest, KeyAndNameMapToEachOther) {
  for (const Key& key : {KeyOf(fd_store::Listener::kAttach), KeyOf(Kind::kLifeline, 0xfedcba9876543210),
                         KeyOf(Kind::kChannel, 1), KeyOf(Kind::kPidfd, 2), KeyOf(Kind::kFencePage, 3),
                         KeyOf(Kind::kStatePage), KeyOf(Kind::kStoreRecord), KeyOf(Kind::kFolderLock)}) {
    const std::string name = ServiceManagerFdStore::NameOf(key);
    EXPECT_EQ(ServiceManagerFdStore::KeyOfName(name), key) << name;
    EXPECT_LE(name.size(), 255u);
    EXPECT_FALSE(absl::StrContains(name, ':'));
  }
  for (const char* const name : {"", "stored", "berth-", "berth-block-1", "berth-lifeline", "berth-lifeline-",
                                 "berth-lifeline-x", "berth-lifeline-01", "berth-lifeline-1-2", "lifeline-1",
                                 "berth-lifeline-11111111111111111"}) {
    EXPECT_EQ(ServiceManagerFdStore::KeyOfName(name), std::nullopt) << name;
  }
}

TEST_F(ServiceManagerFdStoreTest, DriverFdsAreNeverStored) {
  for (const Kind kind : {Kind::kBlock, Kind::kWorker, Kind::kContextWorker, Kind::kMonitor, Kind::kWorkerProcess,
                          Kind::kContextProcess, Kind::kMonitorProcess, Kind::kBroker}) {
    EXPECT_FALSE(ServiceManagerFdStore::Stores(kind));
    Hold(KeyOf(kind, 1));
  }
  EXPECT_EQ(SendAll(), 0u);
}

TEST_F(ServiceManagerFdStoreTest, ShortLivedFdIsNeverSent) {
  const Key lifeline = KeyOf(Kind::kLifeline, 1);
  Hold(lifeline);
  EXPECT_EQ(store_.wake(), now_ + ServiceManagerFdStore::kPause);
  EXPECT_THAT(Attend(), IsEmpty());
  EXPECT_FALSE(Drop(lifeline));
  EXPECT_EQ(SendAll(), 0u);
}

TEST_F(ServiceManagerFdStoreTest, LongLivedFdIsStoredAndRemovedBeforeClose) {
  const Key lifeline = KeyOf(Kind::kLifeline, 0xab);
  Hold(lifeline);
  now_ += ServiceManagerFdStore::kPause;
  EXPECT_THAT(Attend(), ElementsAre(Stored(lifeline)));
  EXPECT_EQ(store_.wake(), MonotonicTime::max());
  EXPECT_TRUE(store_.record().Contains(lifeline));

  EXPECT_TRUE(Drop(lifeline));
  EXPECT_THAT(Attend(), ElementsAre("FDSTOREREMOVE=1\nFDNAME=berth-lifeline-ab", "BARRIER=1"));
  EXPECT_THAT(over_, IsEmpty());
  EXPECT_FALSE(store_.record().Contains(lifeline));
  Attend();
  EXPECT_THAT(over_, IsEmpty()) << "the manager may have it still";
  barriers_.clear();
  Attend();
  EXPECT_THAT(over_, ElementsAre(lifeline));
  EXPECT_EQ(store_.wake(), MonotonicTime::max());
}

TEST_F(ServiceManagerFdStoreTest, UnresponsiveManagerIsNotAwaitedForEver) {
  Hold(KeyOf(Kind::kChannel, 1));
  SendAll();
  Drop(KeyOf(Kind::kChannel, 1));
  Attend();
  EXPECT_EQ(store_.wake(), now_ + ServiceManagerFdStore::kBarrierPatience);
  now_ = store_.wake();
  Attend();
  EXPECT_THAT(over_, ElementsAre(KeyOf(Kind::kChannel, 1)));
}

TEST_F(ServiceManagerFdStoreTest, FdDroppedDuringBarrierGetsNextBarrier) {
  Hold(KeyOf(Kind::kChannel, 1));
  Hold(KeyOf(Kind::kChannel, 2));
  SendAll();
  Drop(KeyOf(Kind::kChannel, 1));
  Attend();
  Drop(KeyOf(Kind::kChannel, 2));
  Attend();
  EXPECT_EQ(barriers_.size(), 1u);
  barriers_.clear();
  Attend();
  EXPECT_THAT(over_, ElementsAre(KeyOf(Kind::kChannel, 1)));
  ASSERT_EQ(barriers_.size(), 1u);
  barriers_.clear();
  Attend();
  EXPECT_THAT(over_, ElementsAre(KeyOf(Kind::kChannel, 2)));
}

TEST_F(ServiceManagerFdStoreTest, UnavailableManagerIsRetried) {
  Hold(KeyOf(Kind::kLifeline, 1));
  now_ += ServiceManagerFdStore::kPause;
  taken_ = absl::UnavailableError("full");
  EXPECT_THAT(Attend(), IsEmpty());
  EXPECT_FALSE(store_.record().Contains(KeyOf(Kind::kLifeline, 1)));
  EXPECT_EQ(store_.wake(), now_ + ServiceManagerFdStore::kPause);
  taken_ = absl::OkStatus();
  EXPECT_EQ(SendAll(), 1u);
  Drop(KeyOf(Kind::kLifeline, 1));
  taken_ = absl::UnavailableError("full");
  Attend();
  EXPECT_TRUE(store_.record().Contains(KeyOf(Kind::kLifeline, 1)));
  taken_ = absl::OkStatus();
  now_ = store_.wake();
  EXPECT_THAT(Attend(), ElementsAre("FDSTOREREMOVE=1\nFDNAME=berth-lifeline-1", "BARRIER=1"));
}

TEST_F(ServiceManagerFdStoreTest, PausesGrowWhileManagerTakesNothing) {
  Hold(KeyOf(Kind::kLifeline, 1));
  now_ = store_.wake();
  taken_ = absl::UnavailableError("full");
  for (std::chrono::milliseconds pause = ServiceManagerFdStore::kPause;
       pause < ServiceManagerFdStore::kLongestPause; pause *= 2) {
    Attend();
    EXPECT_EQ(store_.wake(), now_ + pause);
    now_ = store_.wake();
  }
  for (int i = 0; i < 2; ++i) {
    Attend();
    EXPECT_EQ(store_.wake(), now_ + ServiceManagerFdStore::kLongestPause);
    now_ = store_.wake();
  }
  Attend();
  Hold(KeyOf(Kind::kLifeline, 2));
  EXPECT_EQ(store_.wake(), now_ + ServiceManagerFdStore::kLongestPause) << "not sooner for another fd";
  taken_ = absl::OkStatus();
  EXPECT_EQ(SendAll(), 2u);
  Hold(KeyOf(Kind::kLifeline, 3));
  EXPECT_EQ(store_.wake(), now_ + ServiceManagerFdStore::kPause);
}

TEST_F(ServiceManagerFdStoreTest, FdsAreSentInBursts) {
  for (uint64_t id = 1; id <= 100; ++id) Hold(KeyOf(Kind::kLifeline, id));
  now_ += ServiceManagerFdStore::kPause;
  EXPECT_EQ(Attend().size(), ServiceManagerFdStore::kBurst);
  EXPECT_EQ(Attend().size(), 0u);
  EXPECT_EQ(store_.wake(), now_ + ServiceManagerFdStore::kPause);
  now_ = store_.wake();
  EXPECT_EQ(Attend().size(), 100 - ServiceManagerFdStore::kBurst);
}

TEST_F(ServiceManagerFdStoreTest, FdWithoutPlaceGetsNextFreePlace) {
  const uint64_t many = 2000;
  for (uint64_t id = 1; id <= many; ++id) {
    Hold(KeyOf(Kind::kLifeline, id));
    for (const Kind kind : {Kind::kChannel, Kind::kPidfd, Kind::kFencePage}) Hold(KeyOf(kind, id));
  }
  for (uint64_t id = 1; id <= 4; ++id) Hold(KeyOf(Kind::kListener, id));
  EXPECT_EQ(SendAll(), 4 + ServiceManagerFdStore::kLifelines + 3 * ServiceManagerFdStore::kProcesses);
  EXPECT_LE(store_.record().places().size(), StoreRecord::kPlaces);
  EXPECT_TRUE(store_.record().Contains(KeyOf(Kind::kLifeline, ServiceManagerFdStore::kLifelines)));
  EXPECT_FALSE(store_.record().Contains(KeyOf(Kind::kLifeline, ServiceManagerFdStore::kLifelines + 1)));

  EXPECT_FALSE(Drop(KeyOf(Kind::kLifeline, many))) << "one that was left out";
  EXPECT_TRUE(Drop(KeyOf(Kind::kLifeline, 3)));
  EXPECT_TRUE(Drop(KeyOf(Kind::kChannel, 5)));
  EXPECT_TRUE(Drop(KeyOf(Kind::kFencePage, 5)));
  const uint64_t next = ServiceManagerFdStore::kProcesses + 1;
  Attend();
  EXPECT_THAT(messages_, Contains(Stored(KeyOf(Kind::kLifeline, ServiceManagerFdStore::kLifelines + 1))));
  EXPECT_THAT(messages_, Not(Contains(Stored(KeyOf(Kind::kChannel, next))))) << "of the process its pidfd stays";
  EXPECT_TRUE(Drop(KeyOf(Kind::kPidfd, 5)));
  EXPECT_THAT(Attend(), IsSupersetOf({Stored(KeyOf(Kind::kChannel, next)), Stored(KeyOf(Kind::kPidfd, next)),
                                      Stored(KeyOf(Kind::kFencePage, next))}));
  EXPECT_LE(store_.record().places().size(), StoreRecord::kPlaces);
}

TEST_F(ServiceManagerFdStoreTest, NextSupervisorReconcilesStoredFds) {
  for (uint64_t id = 1; id <= 3; ++id) Hold(KeyOf(Kind::kLifeline, id));
  SendAll();
  held_.erase(KeyOf(Kind::kLifeline, 2));
  held_[KeyOf(Kind::kLifeline, 4)] = *CreateMemfd("test", 0);
  ServiceManagerFdStore next(*StoreRecord::Map(made_.first.get()), Sender());
  next.Reconcile(now_, held_, /*again=*/true);
  now_ += ServiceManagerFdStore::kPause;
  messages_.clear();
  next.Attend(now_, held_);
  EXPECT_THAT(messages_, ElementsAre("FDSTOREREMOVE=1\nFDNAME=berth-lifeline-2", Stored(KeyOf(Kind::kLifeline, 1)),
                                     Stored(KeyOf(Kind::kLifeline, 3)), Stored(KeyOf(Kind::kLifeline, 4)),
                                     "BARRIER=1"));
}

TEST_F(ServiceManagerFdStoreTest, InheritedFdsAreNotSentAgain) {
  for (uint64_t id = 1; id <= 3; ++id) Hold(KeyOf(Kind::kLifeline, id));
  SendAll();
  HeldFds stored;
  stored[KeyOf(Kind::kLifeline, 1)] = *CreateMemfd("test", 0);
  stored[KeyOf(Kind::kLifeline, 9)] = *CreateMemfd("test", 0);
  ServiceManagerFdStore next(*StoreRecord::Map(made_.first.get()), Sender());
  next.RecordStored(stored);
  next.Reconcile(now_, stored, /*again=*/false);
  messages_.clear();
  next.Attend(now_ + ServiceManagerFdStore::kPause, stored);
  EXPECT_THAT(messages_, IsEmpty());
  EXPECT_TRUE(next.Drop(now_, KeyOf(Kind::kLifeline, 9)));
  EXPECT_FALSE(next.Drop(now_, KeyOf(Kind::kLifeline, 2)));
}

TEST_F(ServiceManagerFdStoreTest, InheritedFdsAreSortedByName) {
  std::vector<NamedFd> handed;
  for (const char* const name : {"berth-lifeline-1", "berth-block-1", "berth-lifeline-1", "", "elsewhere"}) {
    handed.push_back({.name = name, .fd = *CreateMemfd("test", 0)});
  }
  const int first = handed[0].fd.get();
  const HeldFds stored = ServiceManagerFdStore::Sort(std::move(handed), Sender());
  ASSERT_EQ(stored.size(), 1u);
  EXPECT_EQ(stored.at(KeyOf(Kind::kLifeline, 1)).get(), first);
  EXPECT_THAT(messages_, ElementsAre("FDSTOREREMOVE=1\nFDNAME=berth-block-1", "FDSTOREREMOVE=1\nFDNAME=elsewhere"));
}

TEST(StoreRecordTest, RecordBelongsToNodeAndServingDaemon) {
  auto [fd, record] = *StoreRecord::Create(kNode);
  record.Begin(42);
  EXPECT_THAT(record.Check(kNode).message(), "the store record's daemon never served");
  record.SetServed();
  EXPECT_TRUE(record.Check(kNode).ok());
  EXPECT_EQ(record.incarnation(), 42u);
  EXPECT_THAT(record.Check(kNode + 1).message(), "the store record is of another node");
  const StoreRecord again = *StoreRecord::Map(fd.get());
  EXPECT_TRUE(again.Check(kNode).ok());
  record.End();
  EXPECT_THAT(again.Check(kNode).message(), "the store record's daemon has shut down cleanly");
}

TEST(StoreRecordTest, RecordOfOtherBootOrInvalidIsRejected) {
  auto [fd, record] = *StoreRecord::Create(kNode);
  record.Begin(42);
  record.SetServed();
  // The boot id follows magic, node and namespace.
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, 24), 1);
  EXPECT_THAT(record.Check(kNode).message(), "the store record is of another boot");
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, 16), 1);
  EXPECT_FALSE(record.Check(kNode).ok());
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, 0), 1);
  EXPECT_EQ(StoreRecord::Map(fd.get()).status().message(), "not a store record");
  EXPECT_FALSE(StoreRecord::Map(CreateMemfd("test", 10)->get()).ok());
}

TEST(StoreRecordTest, PlaceIsGivenOnceAndReusedWhenFree) {
  auto [fd, record] = *StoreRecord::Create(kNode);
  for (uint64_t id = 1; id <= StoreRecord::kPlaces; ++id) EXPECT_TRUE(record.Add(KeyOf(Kind::kPidfd, id)));
  EXPECT_TRUE(record.Add(KeyOf(Kind::kPidfd, 1))) << "it has one";
  EXPECT_FALSE(record.Add(KeyOf(Kind::kPidfd, 0)));
  record.Remove(KeyOf(Kind::kPidfd, 5));
  EXPECT_TRUE(record.Add(KeyOf(Kind::kPidfd, 0)));
  const StoreRecord again = *StoreRecord::Map(fd.get());
  EXPECT_EQ(again.places(), record.places());
}

}  // namespace
}  // namespace berth
