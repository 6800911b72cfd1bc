// The store between a core and memory: a module that a process wrote is handed out sealed, or not at all.

#include "daemon/broker/module_store.h"

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
#include <thread>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/os/unique_fd.h"
#include "common/sha256.h"
#include "daemon/broker/testing/idle_sink.h"
#include "daemon/broker/testing/recorded_call.h"
#include "daemon/supervisor/fd_store/fd_reserve.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr char kText[] = "a module of some kind";

class ModuleSink final : public IdleSink {
 public:
  void Apply(const core::ModuleWork& effect) override {
    if (retains_stores && effect.what == core::ModuleWork::What::kStore) return retained.push_back(effect);
    store->Apply(effect);
  }

  ModuleStore* store = nullptr;
  // Modules to take over are retained instead of passed on.
  bool retains_stores = false;
  std::vector<core::ModuleWork> retained;
};

// A call that adds its user to a list when it succeeds.
class UserCall final : public Call {
 public:
  UserCall(uint32_t user, std::vector<uint32_t>* answered) : user_(user), answered_(*answered) {}
  void Answer(absl::StatusOr<core::Response> response) override {
    EXPECT_TRUE(response.ok()) << response.status();
    answered_.push_back(user_);
  }

 private:
  const uint32_t user_;
  std::vector<uint32_t>& answered_;
};

// For its lifetime, every fd number that clients may have is in use.
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

class ModuleStoreTest : public ::testing::Test {
 protected:
  ModuleStoreTest() {
    char folder[] = "/tmp/berth-modules-XXXXXX";
    folder_ = ::mkdtemp(folder);
    Start();
  }
  ~ModuleStoreTest() override {
    Stop();
    std::filesystem::remove_all(folder_);
  }

  // Starts a broker with the state that an earlier one left.
  void Start() {
    core_ = std::make_unique<core::Core>(
        core::Config{.node = 1, .incarnation = 1, .limits = {.modules = limits_}}, [this] { return ++last_id_; },
        [](core::StreamKey) { return core::FenceValues(); });
    broker_ = std::make_unique<Broker>(core_.get(), &sink_);
    auto files = ModuleFiles::Open(folder_ + "/state");
    ASSERT_TRUE(files.ok()) << files.status();
    const ModuleFiles::Contents contents = (*files)->Scan();
    store_ = std::make_unique<ModuleStore>(broker_.get(), *std::move(files), MiB(1), written_at_once_);
    sink_.store = store_.get();
    broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      for (const core::ModuleRecord& record : contents.records) core.RestoreModule(now, record, effects);
      session_ = *core.OpenSession(now, {}, {}, "test", {});
      channel_ = *core.JoinSession(now, session_, {}, {}, {});
    });
    sequence_ = 0;
  }
  void Stop() {
    store_->Flush(kPatience);
    store_.reset();
    broker_.reset();
    core_.reset();
  }

  core::Caller caller() const { return {.credentials = {.session = session_, .channel = channel_}}; }
  core::Caller OpenSession(uint32_t uid) {
    core::Caller caller = {.tenant = {.uid = uid}};
    broker_->Step([&](core::Core& core, absl::Time now, core::Effects*) {
      caller.credentials.session = *core.OpenSession(now, {}, {.uid = uid}, "test", {});
      caller.credentials.channel = *core.JoinSession(now, caller.credentials.session, {}, {.uid = uid}, {});
    });
    return caller;
  }
  absl::StatusOr<core::Response> TryObtain(const std::string& key, const core::Caller& caller) {
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.ObtainModule(now, id, caller, {.sequence = ++sequence_}, {.key = Sha256Of(key)}, effects);
                    });
    return call.Await();
  }
  absl::StatusOr<core::Response> TryObtain(const std::string& key) { return TryObtain(key, caller()); }
  core::ObtainModuleResult Obtain(const std::string& key) { return Obtain(key, caller()); }
  core::ObtainModuleResult Obtain(const std::string& key, const core::Caller& caller) {
    const absl::StatusOr<core::Response> answer = TryObtain(key, caller);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? std::get<core::ObtainModuleResult>(*answer) : core::ObtainModuleResult();
  }
  absl::Status Store(core::CompileId compile, uint64_t bytes, const Digest& content) {
    return Store(compile, bytes, content, caller());
  }
  absl::Status Store(core::CompileId compile, uint64_t bytes, const Digest& content, const core::Caller& caller) {
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.StoreModule(now, id, caller, {.sequence = ++sequence_},
                                       {.compile = compile, .bytes = Bytes(bytes), .content = content},
                                       effects);
                    });
    return call.Await().status();
  }
  void Write(core::CompileId compile, const std::string& text) {
    const absl::StatusOr<UniqueFd> place = store_->OpenPlace(compile);
    ASSERT_TRUE(place.ok()) << place.status();
    ASSERT_EQ(::pwrite(place->get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  void MustStore(const std::string& key, const std::string& text) { MustStore(key, text, caller()); }
  void MustStore(const std::string& key, const std::string& text, const core::Caller& caller) {
    const core::ObtainModuleResult right = Obtain(key, caller);
    ASSERT_TRUE(right.compile);
    Write(right.compile, text);
    const absl::Status stored = Store(right.compile, text.size(), Sha256Of(text), caller);
    ASSERT_TRUE(stored.ok()) << stored;
  }
  std::string Read(core::ModuleId module) {
    const absl::StatusOr<UniqueFd> fd = store_->OpenModule(module);
    if (!fd.ok()) return std::string(fd.status().message());
    std::string text(1000, '\0');
    text.resize(static_cast<size_t>(::pread(fd->get(), text.data(), text.size(), 0)));
    return text;
  }

  std::string folder_;
  // Limits of the next broker, and of its store.
  Bytes written_at_once_ = ModuleStore::kWrittenAtOnce;
  core::ModuleLimits limits_;
  ModuleSink sink_;
  uint64_t last_id_ = 0;
  uint64_t sequence_ = 0;
  SessionId session_;
  ChannelId channel_;
  std::unique_ptr<core::Core> core_;
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<ModuleStore> store_;
};

TEST_F(ModuleStoreTest, StoredModuleHasWrittenContent) {
  MustStore("key", kText);
  const core::ObtainModuleResult hit = Obtain("key");
  EXPECT_FALSE(hit.compile);
  EXPECT_EQ(hit.content, Sha256Of(kText));
  EXPECT_EQ(Read(hit.module), kText);
}

TEST_F(ModuleStoreTest, SmallerLimitRetainsMostRecentModules) {
  const std::string keys[] = {"first", "second", "third", "fourth"};
  std::set<std::filesystem::path> known;
  for (const std::string& key : keys) {
    MustStore(key, kText);
    store_->Flush(kPatience);
    // Files written in immediate succession may have equal times.
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

TEST_F(ModuleStoreTest, EvictedModulesLeaveNoFile) {
  limits_.modules = 1;
  Stop();
  Start();
  for (const char* const key : {"1", "2", "3", "4", "5"}) MustStore(key, kText);
  store_->Flush(kPatience);
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder_ + "/state/modules")) {
    files += file.path().extension() == ".module" ? 1 : 0;
  }
  EXPECT_EQ(files, 1);
  EXPECT_FALSE(Obtain("5").compile);
}

TEST_F(ModuleStoreTest, LateWriteToPlaceChangesNothing) {
  const core::ObtainModuleResult right = Obtain("key");
  const UniqueFd place = *store_->OpenPlace(right.compile);
  Write(right.compile, kText);
  ASSERT_TRUE(Store(right.compile, strlen(kText), Sha256Of(kText)).ok());
  ASSERT_EQ(::pwrite(place.get(), "EVIL", 4, 0), 4);
  EXPECT_EQ(Read(Obtain("key").module), kText);
}

TEST_F(ModuleStoreTest, ModuleWithWrongDigestIsRejected) {
  const core::ObtainModuleResult right = Obtain("key");
  Write(right.compile, kText);
  const absl::Status status = Store(right.compile, strlen(kText), Sha256Of("another"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(Obtain("key").compile);
}

TEST_F(ModuleStoreTest, PlaceCannotBeEnlarged) {
  const UniqueFd place = *store_->OpenPlace(Obtain("key").compile);
  EXPECT_LT(::ftruncate(place.get(), MiB(2).count()), 0);
  EXPECT_LT(::pwrite(place.get(), "x", 1, static_cast<off_t>(MiB(1).count())), 0);
}

TEST_F(ModuleStoreTest, PlaceEndsWithCompileRight) {
  const core::ObtainModuleResult right = Obtain("key");
  broker_->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.ProcessGone(now, channel_, effects);
  });
  store_->Flush(kPatience);
  EXPECT_TRUE(absl::IsNotFound(store_->OpenPlace(right.compile).status()));
}

TEST_F(ModuleStoreTest, ModulesTakeNoFdReservedForClients) {
  MustStore("kept", kText);
  Stop();
  Start();
  const core::ObtainModuleResult right = Obtain("key");
  Write(right.compile, kText);
  {
    const NoFdsForClients full;
    EXPECT_TRUE(absl::IsNotFound(store_->OpenPlace(Obtain("other").compile).status()));
    const absl::Status unread = TryObtain("kept").status();
    EXPECT_TRUE(IsRefusal(unread, Reason::kLimit)) << unread;
    const absl::Status unstored = Store(right.compile, strlen(kText), Sha256Of(kText));
    EXPECT_TRUE(IsRefusal(unstored, Reason::kLimit)) << unstored;
  }
  EXPECT_EQ(Read(Obtain("kept").module), kText);
  MustStore("key", kText);
}

TEST_F(ModuleStoreTest, UserWaitsForOneStepOfAnother) {
  constexpr uint32_t kBusy = 1'000, kOther = 1'001;
  constexpr int kStores = 20;
  std::vector<uint32_t> answered;
  std::vector<std::unique_ptr<UserCall>> calls;
  const core::Caller busy = OpenSession(kBusy), other = OpenSession(kOther);
  const auto store = [&](const core::Caller& caller, uint32_t user, const std::string& key) {
    const core::ObtainModuleResult right = Obtain(key, caller);
    Write(right.compile, kText);
    calls.push_back(std::make_unique<UserCall>(user, &answered));
    broker_->Submit(broker_->NewCall(), calls.back().get(),
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.StoreModule(now, id, caller, {.sequence = ++sequence_},
                                       {.compile = right.compile,
                                        .bytes = Bytes(strlen(kText)),
                                        .content = Sha256Of(kText)},
                                       effects);
                    });
  };
  sink_.retains_stores = true;
  for (int i = 0; i < kStores; ++i) store(busy, kBusy, absl::StrCat(i));
  store(other, kOther, "one");
  ASSERT_EQ(sink_.retained.size(), kStores + 1u);
  // With the broker's lock held, the store's thread stays in the middle of its first step.
  const bool held = broker_->Read([&](const core::Core&) {
    const auto taken = [&] { return store_->OpenModule(sink_.retained[0].module).ok(); };
    for (const core::ModuleWork& work : sink_.retained) {
      store_->Apply(work);
      for (const absl::Time enough = absl::Now() + kPatience; !taken(); std::this_thread::yield()) {
        if (absl::Now() > enough) return false;
      }
    }
    return true;
  });
  ASSERT_TRUE(held) << "the first step did not begin";
  store_->Flush(kPatience);
  std::vector<uint32_t> in_turn(kStores + 1, kBusy);
  in_turn[1] = kOther;
  EXPECT_EQ(answered, in_turn);
}

TEST_F(ModuleStoreTest, ModulesSurviveRestart) {
  MustStore("key", kText);
  Stop();
  Start();
  const core::ObtainModuleResult hit = Obtain("key");
  EXPECT_FALSE(hit.compile);
  EXPECT_EQ(Read(hit.module), kText);
}

TEST_F(ModuleStoreTest, ModuleBeyondUsersRateIsNotPersisted) {
  Stop();
  written_at_once_ = Bytes(sizeof(kText));
  Start();
  // More than the rate ever allows at once.
  const std::string large(2 * sizeof(kText), 'x');
  MustStore("large", large);
  EXPECT_EQ(Read(Obtain("large").module), large) << "in memory";
  MustStore("small", kText, OpenSession(4711));
  Stop();
  Start();
  EXPECT_TRUE(Obtain("large").compile);
  EXPECT_FALSE(Obtain("small", OpenSession(4711)).compile) << "another user's";
}

TEST_F(ModuleStoreTest, ModuleChangedOnDiskIsCompiledAnew) {
  MustStore("key", kText);
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
