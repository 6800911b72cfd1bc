#include <string>
#include <vector>

#include "daemon/core/testing/core_harness.h"

namespace berth::core {
namespace {

class CoreReadingTest : public ::testing::Test {
 protected:
  CoreReadingTest() : h_(MakeConfig()), peer_(h_.Open()) {}

  static Config MakeConfig() {
    Config config = CoreHarness::DefaultConfig();
    config.pools[1].idle_warning = absl::Seconds(30);
    return config;
  }
  void Read(Bytes free, std::vector<ProcessReading> processes, std::optional<uint32_t> utilisation = 0) {
    h_.Do([&](Core& core, Effects* effects) {
      core.DeviceRead(h_.now, 0,
                      {.taken = h_.now,
                       .total = MiB(64),
                       .free = free,
                       .utilisation = utilisation,
                       .processes = std::move(processes)},
                      effects);
    });
  }
  // Acquires a permit of device 0 that declares `bytes`, with a new holder key.
  CallId Declare(Bytes bytes, bool wait = false) {
    return h_.Acquire(peer_, {.pool = "wide",
                              .holder_key = "k" + std::to_string(++keys_),
                              .wait = wait,
                              .device = {.pick = DevicePick::kNamed, .uuid = "DEVICE-0", .declared = bytes}});
  }
  bool Fits(Bytes bytes) {
    const CallId call = Declare(bytes);
    if (!h_.StatusOf(call).ok()) return false;
    h_.Release(peer_, h_.Get<AcquireResult>(call).acquisition);
    return true;
  }
  // Returns the pid of a peer's process, as reported by the kernel.
  int32_t PidOf(const Peer& peer) const {
    return h_.core->GetSession(CoreHarness::Admin(), peer.session)->processes.at(0).pid;
  }

  CoreHarness h_;
  Peer peer_;
  int keys_ = 0;
};

TEST_F(CoreReadingTest, FreeBytesFollowLastReading) {
  EXPECT_TRUE(Fits(MiB(64)));
  Peer other = h_.Open();
  h_.MustAllocate(other, MiB(8));
  // Another process's 10 MiB, and 6 MiB listed for no process. The block is in the ledger, and its process has 3 MiB
  // more.
  Read(MiB(64 - 10 - 6 - 8 - 3), {{.pid = 77, .bytes = MiB(10)}, {.pid = PidOf(other), .bytes = MiB(3)}});
  EXPECT_TRUE(Fits(MiB(64 - 10 - 6 - 8 - 3)));
  EXPECT_FALSE(Fits(Bytes(MiB(64 - 10 - 6 - 8 - 3).count() + 1)));
  EXPECT_EQ(h_.core->ListDevices()[0].reading->others, MiB(16));
  // The daemon's own bytes are in the ledger and hide no other process's bytes.
  Read(MiB(50), {{.pid = 5, .bytes = MiB(8), .daemon = true}});
  EXPECT_EQ(h_.core->ListDevices()[0].reading->others, MiB(6));
  EXPECT_TRUE(Fits(MiB(50)));
  EXPECT_FALSE(Fits(Bytes(MiB(50).count() + 1)));
}

TEST_F(CoreReadingTest, ReadingOfFreeBytesServesWaiter) {
  Read(MiB(24), {{.pid = 77, .bytes = MiB(40)}});
  const CallId waits = Declare(MiB(30), /*wait=*/true);
  EXPECT_FALSE(h_.Answered(waits));
  Read(MiB(64), {});
  EXPECT_EQ(h_.Get<AcquireResult>(waits).device->ordinal, 0u);
}

TEST_F(CoreReadingTest, SingleReadingGrantsSameBytesOnce) {
  Read(MiB(64), {});
  h_.Get<AcquireResult>(Declare(MiB(40)));
  EXPECT_TRUE(h_.Refused(Declare(MiB(40)), Reason::kNoPermit)) << "though the driver has seen nothing yet";
}

TEST_F(CoreReadingTest, OlderReadingChangesNothing) {
  h_.now += absl::Seconds(2);
  Read(MiB(64), {});
  h_.now -= absl::Seconds(1);
  Read(MiB(4), {{.pid = 77, .bytes = MiB(60)}});
  h_.now += absl::Seconds(1);
  EXPECT_TRUE(Fits(MiB(60)));
}

TEST_F(CoreReadingTest, ProcessWithoutPermitIsStray) {
  Peer holder = h_.Open(), none = h_.Open(2000);
  h_.MustAcquire(holder, {.pool = "wide", .holder_key = "h"});
  const absl::Time first = h_.now;
  Read(MiB(1), {{.pid = PidOf(holder), .uid = 1000},
                {.pid = 900, .uid = 1000, .ancestors = {901, PidOf(holder)}},
                {.pid = PidOf(none), .uid = 2000},
                {.pid = 90002, .uid = 3000, .name = "lone"},
                {.pid = 903, .daemon = true}});
  h_.now += absl::Seconds(1);
  Read(MiB(1), {{.pid = PidOf(none), .uid = 2000}, {.pid = 90002, .uid = 3000, .name = "lone"}});
  const std::vector<StrayView> strays = h_.core->ListStrays(CoreHarness::Admin());
  ASSERT_EQ(strays.size(), 2u);
  EXPECT_EQ(strays[0].session, none.session);
  EXPECT_EQ(strays[1].process.name, "lone");
  EXPECT_EQ(strays[1].session, SessionId());
  EXPECT_EQ(strays[1].since, first);
  EXPECT_EQ(h_.core->ListStrays(none.caller()).size(), 1u) << "one's own";
  EXPECT_EQ(h_.core->ListStrays(holder.caller()).size(), 0u);
}

TEST_F(CoreReadingTest, IdleHeldPermitIsShownNotTaken) {
  const AcquireRequest request{
      .pool = "wide", .holder_key = "h", .device = {.pick = DevicePick::kNamed, .uuid = "DEVICE-0"}};
  Read(MiB(64), {});
  h_.MustAcquire(peer_, request);
  const auto idle = [&] { return h_.core->ListPermits(peer_.caller(), "wide").at(0).idle; };
  h_.now += absl::Seconds(29);
  Read(MiB(64), {});
  EXPECT_EQ(idle(), absl::ZeroDuration());
  h_.now += absl::Seconds(1);
  Read(MiB(64), {});
  EXPECT_EQ(idle(), absl::Seconds(30));
  Read(MiB(64), {}, 1);
  EXPECT_EQ(idle(), absl::ZeroDuration());
  h_.now += absl::Seconds(40);
  Read(MiB(64), {});
  EXPECT_EQ(idle(), absl::Seconds(40));
  Read(MiB(64), {}, std::nullopt);
  EXPECT_EQ(idle(), absl::ZeroDuration()) << "nobody says";
}

TEST_F(CoreReadingTest, UtilisationWhileHeldIsShown) {
  const AcquireRequest request{
      .pool = "wide", .holder_key = "h", .device = {.pick = DevicePick::kNamed, .uuid = "DEVICE-0"}};
  const auto read = [&](uint32_t percent) {
    h_.now += absl::Seconds(1);
    Read(MiB(64), {}, percent);
  };
  read(0);
  read(100);
  h_.MustAcquire(peer_, request);
  h_.MustAcquire(peer_, {.pool = "wide", .holder_key = "any"});
  const auto shown = [&](size_t nth) { return h_.core->ListPermits(peer_.caller(), "wide").at(nth).utilisation; };
  EXPECT_EQ(shown(0), std::nullopt) << "what was before it is not its own";
  read(20);
  EXPECT_EQ(shown(0), 20u);
  for (int i = 0; i < 3; ++i) read(0);
  EXPECT_EQ(shown(0), 5u);
  EXPECT_EQ(shown(1), 5u) << "one that names none: the busiest device";
}

}  // namespace
}  // namespace berth::core
