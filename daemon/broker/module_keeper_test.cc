// The keeper between a core and memory: what a process wrote is handed out sealed, or not at all.

#include "daemon/broker/module_keeper.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/error.h"
#include "common/sha256.h"
#include "common/unique_fd.h"
#include "daemon/broker/idle_sink.h"
#include "daemon/broker/recorded_call.h"
#include "daemon/vault/fd_reserve.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr char kText[] = "a module of some kind";

class ModuleSink final : public IdleSink {
 public:
  void Carry(const core::ModuleWork& effect) override { keeper->Carry(effect); }

  ModuleKeeper* keeper = nullptr;
};

// As long as it lives, each number that clients may have is in use.
class NoFdsForClients {
 public:
  NoFdsForClients() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit tight = {.rlim_cur = 400, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &tight);
    do {
      taken_.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    } while (taken_.back() && taken_.back().get() < ClientFdLimit());
  }
  ~NoFdsForClients() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
  std::vector<UniqueFd> taken_;
};

class ModuleKeeperTest : public ::testing::Test {
 protected:
  ModuleKeeperTest() {
    char folder[] = "/tmp/berth-keeper-XXXXXX";
    folder_ = ::mkdtemp(folder);
    Start();
  }
  ~ModuleKeeperTest() override {
    Stop();
    std::filesystem::remove_all(folder_);
  }

  // A broker with what an earlier one has left.
  void Start() {
    core_ = std::make_unique<core::Core>(
        core::Config{.node = 1, .incarnation = 1, .limits = {.modules = limits_}}, [this] { return ++last_id_; },
        [](core::StreamKey) { return core::StreamWords(); });
    broker_ = std::make_unique<Broker>(core_.get(), &sink_);
    auto files = ModuleFiles::Open(folder_ + "/state");
    ASSERT_TRUE(files.ok()) << files.status();
    const ModuleFiles::Contents contents = (*files)->Scan();
    keeper_ = std::make_unique<ModuleKeeper>(broker_.get(), *std::move(files), MiB(1));
    sink_.keeper = keeper_.get();
    broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      for (const core::ModuleRecord& record : contents.records) core.RestoreModule(now, record, effects);
      session_ = *core.OpenSession(now, {}, {}, "test", {});
      channel_ = *core.JoinSession(now, session_, {}, {}, {});
    });
    sequence_ = 0;
  }
  void Stop() {
    keeper_->Flush(kPatience);
    keeper_.reset();
    broker_.reset();
    core_.reset();
  }

  core::Caller caller() const { return {.credentials = {.session = session_, .channel = channel_}}; }
  absl::StatusOr<core::Response> TryObtain(const std::string& key) {
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.ObtainModule(now, id, caller(), {.sequence = ++sequence_}, {.key = Sha256Of(key)},
                                        effects);
                    });
    return call.Await();
  }
  core::ObtainModuleResult Obtain(const std::string& key) {
    const absl::StatusOr<core::Response> answer = TryObtain(key);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? std::get<core::ObtainModuleResult>(*answer) : core::ObtainModuleResult();
  }
  absl::Status Store(core::CompileId compile, uint64_t bytes, const Digest& content) {
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.StoreModule(now, id, caller(), {.sequence = ++sequence_},
                                       {.compile = compile, .bytes = Bytes(bytes), .content = content},
                                       effects);
                    });
    return call.Await().status();
  }
  void Write(core::CompileId compile, const std::string& text) {
    const absl::StatusOr<UniqueFd> place = keeper_->OpenPlace(compile);
    ASSERT_TRUE(place.ok()) << place.status();
    ASSERT_EQ(::pwrite(place->get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  void MustKeep(const std::string& key, const std::string& text) {
    const core::ObtainModuleResult right = Obtain(key);
    ASSERT_TRUE(right.compile);
    Write(right.compile, text);
    const absl::Status stored = Store(right.compile, text.size(), Sha256Of(text));
    ASSERT_TRUE(stored.ok()) << stored;
  }
  std::string Read(core::ModuleId module) {
    const absl::StatusOr<UniqueFd> fd = keeper_->OpenModule(module);
    if (!fd.ok()) return std::string(fd.status().message());
    std::string text(1000, '\0');
    text.resize(static_cast<size_t>(::pread(fd->get(), text.data(), text.size(), 0)));
    return text;
  }

  std::string folder_;
  // Of the next broker.
  core::ModuleLimits limits_;
  ModuleSink sink_;
  uint64_t last_id_ = 0;
  uint64_t sequence_ = 0;
  SessionId session_;
  ChannelId channel_;
  std::unique_ptr<core::Core> core_;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<ModuleKeeper> keeper_;
};

TEST_F(ModuleKeeperTest, WhatWasWrittenToThePlaceIsTheModule) {
  MustKeep("key", kText);
  const core::ObtainModuleResult hit = Obtain("key");
  EXPECT_FALSE(hit.compile);
  EXPECT_EQ(hit.content, Sha256Of(kText));
  EXPECT_EQ(Read(hit.module), kText);
}

TEST_F(ModuleKeeperTest, WithLessRoomThanBeforeWhatWasUsedLastIsKept) {
  const std::string keys[] = {"first", "second", "third", "fourth"};
  std::set<std::filesystem::path> known;
  for (const std::string& key : keys) {
    MustKeep(key, kText);
    keeper_->Flush(kPatience);
    // Files that are written one right after the other may have one time.
    for (const auto& file : std::filesystem::directory_iterator(folder_ + "/state/modules")) {
      if (!known.insert(file.path()).second) continue;
      std::filesystem::last_write_time(
          file, std::filesystem::file_time_type::clock::now() - std::chrono::hours(24 - known.size()));
    }
  }
  Stop();
  limits_.modules = 2;
  Start();
  EXPECT_FALSE(Obtain("third").compile);
  EXPECT_FALSE(Obtain("fourth").compile);
  EXPECT_TRUE(Obtain("second").compile);
  EXPECT_TRUE(Obtain("first").compile);
}

TEST_F(ModuleKeeperTest, WhoKeepsWritingToThePlaceChangesNothing) {
  const core::ObtainModuleResult right = Obtain("key");
  const UniqueFd place = *keeper_->OpenPlace(right.compile);
  Write(right.compile, kText);
  ASSERT_TRUE(Store(right.compile, strlen(kText), Sha256Of(kText)).ok());
  ASSERT_EQ(::pwrite(place.get(), "EVIL", 4, 0), 4);
  EXPECT_EQ(Read(Obtain("key").module), kText);
}

TEST_F(ModuleKeeperTest, WhatIsNotWhatItIsCalledIsRefused) {
  const core::ObtainModuleResult right = Obtain("key");
  Write(right.compile, kText);
  const absl::Status status = Store(right.compile, strlen(kText), Sha256Of("another"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(Obtain("key").compile);
}

TEST_F(ModuleKeeperTest, APlaceCannotBeMadeLarger) {
  const UniqueFd place = *keeper_->OpenPlace(Obtain("key").compile);
  EXPECT_LT(::ftruncate(place.get(), MiB(2).count()), 0);
  EXPECT_LT(::pwrite(place.get(), "x", 1, static_cast<off_t>(MiB(1).count())), 0);
}

TEST_F(ModuleKeeperTest, ThePlaceGoesWithTheRightToIt) {
  const core::ObtainModuleResult right = Obtain("key");
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ProcessGone(now, channel_, effects);
  });
  keeper_->Flush(kPatience);
  EXPECT_TRUE(absl::IsNotFound(keeper_->OpenPlace(right.compile).status()));
}

TEST_F(ModuleKeeperTest, NoneTakesAnFdThatClientsAreToLeave) {
  MustKeep("kept", kText);
  Stop();
  Start();
  const core::ObtainModuleResult right = Obtain("key");
  Write(right.compile, kText);
  {
    const NoFdsForClients full;
    EXPECT_TRUE(absl::IsNotFound(keeper_->OpenPlace(Obtain("other").compile).status()));
    const absl::Status unread = TryObtain("kept").status();
    EXPECT_TRUE(IsRefusal(unread, Reason::kLimit)) << unread;
    const absl::Status unstored = Store(right.compile, strlen(kText), Sha256Of(kText));
    EXPECT_TRUE(IsRefusal(unstored, Reason::kLimit)) << unstored;
  }
  EXPECT_EQ(Read(Obtain("kept").module), kText);
  MustKeep("key", kText);
}

TEST_F(ModuleKeeperTest, ARestartKeepsIt) {
  MustKeep("key", kText);
  Stop();
  Start();
  const core::ObtainModuleResult hit = Obtain("key");
  EXPECT_FALSE(hit.compile);
  EXPECT_EQ(Read(hit.module), kText);
}

TEST_F(ModuleKeeperTest, WhatWasChangedOnDiskIsCompiledAnew) {
  MustKeep("key", kText);
  Stop();
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/state/modules")) {
    if (entry.path().extension() != ".module") continue;
    const UniqueFd file(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_EQ(::pwrite(file.get(), "!", 1, ::lseek(file.get(), -1, SEEK_END)), 1);
  }
  Start();
  EXPECT_TRUE(Obtain("key").compile);
  const core::ModuleUsage usage =
      broker_->Read([](const core::Core& core) { return core.GetModuleUsage({.admin = true}); });
  EXPECT_EQ(usage.counts.corrupt, 1u);
}

}  // namespace
}  // namespace berth
