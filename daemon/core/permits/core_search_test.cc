// Cost of a step with many waiters that cannot be served, measured as the number of judged waiters instead of time.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr uint64_t kWaiters = 90;
// Limit of waiters judged in one step, however many wait.
constexpr uint64_t kFew = 12;

// Device 0 has 40 MiB of its 64 MiB free for permits, the other devices 32 MiB.
Config ConfigOf() {
  Config config = CoreHarness::DefaultConfig();
  config.pools = {{.name = "p", .cap = 1'000},
                  {.name = "capped", .cap = 3 * kWaiters + kWaiters / 2, .tenant_cap = kWaiters},
                  {.name = "shared", .cap = 1'000, .device_cap = kWaiters + 1}};
  config.devices.clear();
  for (uint32_t ordinal = 0; ordinal < 4; ++ordinal) {
    config.devices.push_back({.ordinal = ordinal,
                              .uuid = absl::StrCat("DEVICE-", ordinal),
                              .total = MiB(64),
                              .budget = MiB(16),
                              .others = ordinal == 0 ? MiB(24) : MiB(32)});
    config.devices.back().facts.cc_major = 9;
  }
  config.limits.reservations_per_session = 2 * kWaiters;
  return config;
}

struct Case {
  const char* name;
  // Prepares what is out before the waiters arrive.
  std::function<void(CoreHarness&, Peer& waiting, Peer& other)> prepare;
  // Adds waiter `i`, which differs from all others.
  std::function<CallId(CoreHarness&, Peer& waiting, uint64_t i)> wait;
  // Pool in which another session may get a unit while they wait.
  const char* pool = "p";
};

Bytes More(Bytes bytes, uint64_t i) { return Bytes(bytes.count() + 1 + i); }

CallId Acquire(CoreHarness& core, Peer& peer, AcquireRequest request, uint64_t i) {
  request.holder_key = absl::StrCat(i);
  return core.Acquire(peer, request);
}

CallId AcquireGang(CoreHarness& core, Peer& peer, GangRequest request, uint64_t i) {
  request.holder_key = absl::StrCat(i);
  return core.AcquireGang(peer, request);
}

std::vector<Case> Cases() {
  const auto nothing = [](CoreHarness&, Peer&, Peer&) {};
  const auto any = [](uint64_t i) { return DeviceConstraint{.pick = DevicePick::kAny, .min_free = More(MiB(40), i)}; };
  return {
      {"bytes of any device", nothing,
       [=](CoreHarness& core, Peer& peer, uint64_t i) {
         return Acquire(core, peer, {.pool = "p", .device = any(i)}, i);
       }},
      {"bytes of one device", nothing,
       [=](CoreHarness& core, Peer& peer, uint64_t i) {
         DeviceConstraint constraint = any(i);
         constraint.pick = DevicePick::kNamed;
         constraint.uuid = absl::StrCat("DEVICE-", i % 4);
         return Acquire(core, peer, {.pool = "p", .device = constraint}, i);
       }},
      {"declared bytes", nothing,
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         return Acquire(core, peer,
                        {.pool = "p", .device = {.pick = DevicePick::kBest, .declared = More(MiB(40), i)}}, i);
       }},
      {"bytes of a device of some capability", nothing,
       [=](CoreHarness& core, Peer& peer, uint64_t i) {
         DeviceConstraint constraint = any(i);
         constraint.min_capability = static_cast<uint32_t>(i % 90);
         return Acquire(core, peer, {.pool = "p", .device = constraint}, i);
       }},
      {"bytes, with many priorities, client's caps, alone or not", nothing,
       [=](CoreHarness& core, Peer& peer, uint64_t i) {
         return Acquire(core, peer,
                        {.pool = "p",
                         .units = 1 + i % 7,
                         .client_cap = 1 + i,
                         .priority = static_cast<int32_t>(i % 21) - 10,
                         .exclusive = i % 2 == 0,
                         .device = any(i)},
                        i);
       }},
      {"units that the tenant's cap leaves nobody",
       [](CoreHarness& core, Peer& peer, Peer&) {
         core.MustAcquire(peer, {.pool = "capped", .units = kWaiters, .holder_key = "h"});
       },
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         return Acquire(core, peer, {.pool = "capped", .units = 1 + i}, i);
       },
       "capped"},
      {"units that are out",
       [](CoreHarness& core, Peer&, Peer& other) {
         core.MustAcquire(other, {.pool = "p", .units = 998, .holder_key = "h"});
       },
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         return Acquire(core, peer, {.pool = "p", .units = 3 + i}, i);
       }},
      {"less to be out",
       [](CoreHarness& core, Peer&, Peer& other) {
         core.MustAcquire(other, {.pool = "p", .units = kWaiters, .holder_key = "h"});
       },
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         return Acquire(core, peer, {.pool = "p", .client_cap = 1 + i}, i);
       }},
      {"the whole pool, with many priorities",
       [](CoreHarness& core, Peer&, Peer& other) { core.MustAcquire(other, {.pool = "p", .holder_key = "h"}); },
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         return Acquire(core, peer,
                        {.pool = "p",
                         .client_cap = i,
                         .priority = static_cast<int32_t>(i % 21) - 10,
                         .exclusive = true},
                        i);
       }},
      {"bytes that permits have declared",
       [](CoreHarness& core, Peer&, Peer& other) {
         for (uint64_t i = 0; i < 4; ++i) {
           const DeviceConstraint constraint = {.pick = DevicePick::kNamed,
                                                .uuid = absl::StrCat("DEVICE-", i),
                                                .declared = i == 0 ? MiB(38) : MiB(30)};
           core.MustAcquire(other, {.pool = "p", .holder_key = absl::StrCat("h", i), .device = constraint});
         }
       },
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         return Acquire(core, peer,
                        {.pool = "p", .device = {.pick = DevicePick::kAny, .declared = More(MiB(2), i)}}, i);
       }},
      {"units of a device, or its bytes",
       [](CoreHarness& core, Peer&, Peer& other) {
         for (uint64_t i = 0; i < 2; ++i) {
           const DeviceConstraint constraint = {.pick = DevicePick::kNamed, .uuid = absl::StrCat("DEVICE-", i)};
           core.MustAcquire(other, {.pool = "shared",
                                    .units = kWaiters,
                                    .holder_key = absl::StrCat("h", i),
                                    .device = constraint});
         }
       },
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         return Acquire(core, peer,
                        {.pool = "shared",
                         .units = 2 + i / 3,
                         .device = {.pick = DevicePick::kAny, .min_free = More(MiB(32), i)}},
                        i);
       },
       "p"},
      {"a gang of one", nothing,
       [=](CoreHarness& core, Peer& peer, uint64_t i) {
         return AcquireGang(core, peer, {.members = {{.pool = "p", .device = any(i)}}}, i);
       }},
      {"two devices of which there is one", nothing,
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         const DeviceConstraint constraint = {.pick = DevicePick::kAny, .min_free = More(MiB(32), i)};
         return AcquireGang(core, peer,
                            {.members = {{.pool = "p", .device = constraint}, {.pool = "p", .device = constraint}}}, i);
       }},
      {"units of a pool, together with another's",
       [](CoreHarness& core, Peer&, Peer& other) {
         core.MustAcquire(other, {.pool = "capped", .units = kWaiters, .holder_key = "h"});
         Peer third = core.Open(77);
         Peer fourth = core.Open(78);
         core.MustAcquire(third, {.pool = "capped", .units = kWaiters, .holder_key = "h"});
         core.MustAcquire(fourth, {.pool = "capped", .units = kWaiters, .holder_key = "h"});
       },
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         return AcquireGang(
             core, peer, {.members = {{.pool = "p", .units = 1 + i}, {.pool = "capped", .units = 46 + i % 44}}}, i);
       }},
      {"bytes to be reserved",
       [](CoreHarness& core, Peer&, Peer& other) { core.MustAllocate(other, MiB(14)); },
       [](CoreHarness& core, Peer& peer, uint64_t i) {
         return AcquireGang(core, peer,
                            {.members = {{.pool = "p", .units = 1 + i}},
                             .reserve = {{.device = 0, .bytes = MiB(4 + 2 * (i % 6))}}},
                            i);
       }},
  };
}

TEST(CoreSearchTest, UnservableWaitersCostOthersNoSteps) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.name);
    CoreHarness core(ConfigOf());
    Peer waiting = core.Open(1), other = core.Open(2);
    one.prepare(core, waiting, other);
    for (uint64_t i = 0; i < kWaiters; ++i) {
      const uint64_t before = core.core->CountJudged();
      const CallId call = one.wait(core, waiting, i);
      ASSERT_FALSE(core.Answered(call)) << i << ": " << core.StatusOf(call);
      ASSERT_LE(core.core->CountJudged() - before, kFew) << "when " << i << " wait";
    }
    // In the first round some waiters may turn out to have another stall.
    for (int round = 0; round < 4; ++round) {
      const uint64_t before = core.core->CountJudged();
      const AcquireResult had = core.MustAcquire(other, {.pool = one.pool, .holder_key = "another"});
      const uint64_t acquired = core.core->CountJudged();
      core.Release(other, had.acquisition);
      EXPECT_LE(acquired - before, kFew) << round;
      EXPECT_LE(core.core->CountJudged() - acquired, kFew) << round;
    }
  }
}

// Returns the gauges that a step of another session reads, which declares bytes, beside `waiters` distinct lists.
uint64_t GaugesReadBesideLists(uint64_t waiters) {
  constexpr uint32_t kDevices = 16;
  Config config = ConfigOf();
  while (config.devices.size() < kDevices) {
    config.devices.push_back(config.devices.back());
    config.devices.back().ordinal = static_cast<uint32_t>(config.devices.size() - 1);
    config.devices.back().uuid = absl::StrCat("DEVICE-", config.devices.back().ordinal);
  }
  CoreHarness core(config);
  Peer waiting = core.Open(1), other = core.Open(2);
  for (uint64_t i = 0; i < waiters; ++i) {
    DeviceConstraint constraint{.pick = DevicePick::kAny, .min_free = MiB(41)};
    // Each device, and a set of the others that differs for each waiter.
    for (uint32_t ordinal = 0; ordinal < kDevices; ++ordinal) {
      if (ordinal == i % kDevices || ((i + 1) >> (ordinal % 8) & 1) != 0) {
        constraint.among.push_back(absl::StrCat("DEVICE-", ordinal));
      }
    }
    EXPECT_FALSE(core.Answered(Acquire(core, waiting, {.pool = "p", .device = constraint}, i)));
  }
  const auto take_turn = [&] {
    const uint64_t before = core.core->CountGaugesRead();
    core.Release(other, core.MustAcquire(other, {.pool = "p",
                                                 .holder_key = "another",
                                                 .device = {.pick = DevicePick::kAny, .declared = MiB(1)}})
                            .acquisition);
    return core.core->CountGaugesRead() - before;
  };
  take_turn();
  return take_turn();
}

TEST(CoreSearchTest, DistinctDeviceListsCostOthersNoGauges) {
  const uint64_t few = GaugesReadBesideLists(32);
  EXPECT_GT(few, 0u);
  EXPECT_LE(GaugesReadBesideLists(kWaiters), few);
}

// The cost of another session's block beside gangs whose bytes are not free.
TEST(CoreSearchTest, ReservingGangsCostOthersBlocksNoSteps) {
  for (const uint64_t warm : {0, 1}) {
    SCOPED_TRACE(warm);
    Config config = ConfigOf();
    config.warm_blocks_per_size = warm;
    config.warm_refill_delay = absl::ZeroDuration();
    CoreHarness core(config);
    Peer waiting = core.Open(1), other = core.Open(2), holder = core.Open(3);
    for (const uint32_t device : {0, 1}) core.MustAllocate(holder, MiB(8), device);
    for (uint64_t i = 0; i < kWaiters; ++i) {
      const Bytes bytes = MiB(10 + 2 * (i % 4));
      const CallId call = AcquireGang(
          core, waiting,
          {.members = {{.pool = "p"}}, .reserve = {{.device = 0, .bytes = bytes}, {.device = 1, .bytes = MiB(10)}}}, i);
      ASSERT_FALSE(core.Answered(call)) << core.StatusOf(call);
    }
    for (int round = 0; round < 4; ++round) {
      for (const uint32_t device : {0, 1, 2}) {
        const uint64_t before = core.core->CountJudged();
        const AllocateResult block = core.MustAllocate(other, MiB(2), device);
        core.Free(other, block.block.handle, {block.import});
        core.WorkAll();
        EXPECT_LE(core.core->CountJudged() - before, kFew) << round << " on " << device;
      }
    }
  }
}

// Gangs of which each lacks bytes of two devices or more.
struct SeveralDevices {
  const char* name;
  std::function<GangRequest(uint64_t i)> gang;
  // The user and the session that gang `i` is of.
  enum class Of { kOneSession, kOwnSession, kOwnUser } of = Of::kOneSession;
  uint32_t warm = 0;
  // The block that another session holds on each device, and frees and allocates again.
  Bytes block = MiB(8);
};

GangRequest ReservingGang(uint64_t units, const std::vector<Bytes>& bytes) {
  GangRequest request = {.members = {{.pool = "p", .units = units}}};
  for (uint32_t device = 0; device < bytes.size(); ++device) {
    if (bytes[device] > Bytes()) request.reserve.push_back({.device = device, .bytes = bytes[device]});
  }
  return request;
}

std::vector<SeveralDevices> GangsOfSeveralDevices() {
  using Of = SeveralDevices::Of;
  const auto alike = [](uint64_t) { return ReservingGang(1, {MiB(10), MiB(10)}); };
  const auto distinct = [](uint64_t i) { return ReservingGang(1 + i, {MiB(10), MiB(10)}); };
  // Each device has the bytes of every second gang.
  const auto mixed = [](uint64_t i) { return ReservingGang(1 + i, {MiB(16 - i % 2 * 8), MiB(8 + i % 2 * 8)}); };
  const auto any_two_of_three = [](uint64_t i) {
    std::vector<Bytes> bytes(3, MiB(10));
    bytes[i % 3] = Bytes();
    return ReservingGang(1 + i, bytes);
  };
  return {
      {"alike", alike},
      {"alike, of many sessions", alike, Of::kOwnSession},
      {"alike, of many users", alike, Of::kOwnUser},
      {"distinct units", distinct},
      {"distinct units, with warm blocks", distinct, Of::kOneSession, /*warm=*/1},
      {"distinct bytes",
       [](uint64_t i) { return ReservingGang(1 + i, {MiB(10 + 2 * (i % 4)), MiB(16 - 2 * (i % 4))}); }},
      {"much of one device, and little of another", mixed, Of::kOneSession, /*warm=*/0, MiB(2)},
      {"three devices", [](uint64_t i) { return ReservingGang(1 + i, {MiB(10), MiB(10), MiB(10)}); }},
      {"any two of three devices", any_two_of_three},
  };
}

// Another session frees a block of each device in turn, so that each gang often has the bytes of some of its devices.
TEST(CoreSearchTest, GangsOfSeveralDevicesCostOthersFreesNoSteps) {
  constexpr uint32_t kDevices = 3;
  constexpr uint64_t kGangs = 3 * kFew;
  for (const SeveralDevices& one : GangsOfSeveralDevices()) {
    SCOPED_TRACE(one.name);
    Config config = ConfigOf();
    config.warm_blocks_per_size = one.warm;
    config.warm_refill_delay = absl::ZeroDuration();
    CoreHarness core(config);
    Peer first = core.Open(1), other = core.Open(2), holder = core.Open(3);
    std::vector<AllocateResult> blocks, held;
    for (uint32_t device = 0; device < kDevices; ++device) {
      blocks.push_back(core.MustAllocate(other, one.block, device));
      held.push_back(core.MustAllocate(holder, MiB(2), device));
    }
    std::vector<CallId> calls;
    for (uint64_t i = 0; i < kGangs; ++i) {
      std::optional<Peer> own;
      if (one.of == SeveralDevices::Of::kOwnSession) own = core.Open(1);
      if (one.of == SeveralDevices::Of::kOwnUser) own = core.Open(static_cast<uint32_t>(100 + i));
      const uint64_t before = core.core->CountJudged();
      calls.push_back(AcquireGang(core, own.has_value() ? *own : first, one.gang(i), i));
      ASSERT_FALSE(core.Answered(calls.back())) << i << ": " << core.StatusOf(calls.back());
      ASSERT_LE(core.core->CountJudged() - before, kFew) << "when " << i << " wait";
    }
    const auto free = [&](Peer& owner, const AllocateResult& block) {
      core.Free(owner, block.block.handle, {block.import});
      core.WorkAll();
    };
    for (int round = 0; round < 2; ++round) {
      for (uint32_t device = 0; device < kDevices; ++device) {
        uint64_t before = core.core->CountJudged();
        free(other, blocks[device]);
        EXPECT_LE(core.core->CountJudged() - before, kFew) << round << ": freed on " << device;
        before = core.core->CountJudged();
        core.Release(other, core.MustAcquire(other, {.pool = "p", .holder_key = "another"}).acquisition);
        EXPECT_LE(core.core->CountJudged() - before, kFew) << round << ": permit beside " << device;
        before = core.core->CountJudged();
        blocks[device] = core.MustAllocate(other, one.block, device);
        core.WorkAll();
        EXPECT_LE(core.core->CountJudged() - before, kFew) << round << ": allocated on " << device;
      }
    }
    ASSERT_FALSE(core.Answered(calls.front())) << core.StatusOf(calls.front());
    for (uint32_t device = 0; device < kDevices; ++device) {
      free(other, blocks[device]);
      free(holder, held[device]);
    }
    EXPECT_TRUE(std::any_of(calls.begin(), calls.end(), [&](CallId call) { return core.Answered(call); }));
  }
}

// A search that judges such a gang places all its members on all devices.
TEST(CoreSearchTest, UnservableLargestGangsCostOthersNoSteps) {
  Config config = ConfigOf();
  while (config.devices.size() < 64) {
    config.devices.push_back(config.devices.back());
    config.devices.back().ordinal = static_cast<uint32_t>(config.devices.size() - 1);
    config.devices.back().uuid = absl::StrCat("DEVICE-", config.devices.back().ordinal);
  }
  CoreHarness core(config);
  Peer waiting = core.Open(1), other = core.Open(2);
  // After each step the harness judges every gang, which takes milliseconds for each.
  constexpr uint64_t kGangs = 2 * kFew;
  for (uint64_t i = 0; i < kGangs; ++i) {
    // Device 0 alone has so many bytes free.
    const GangMember member = {.pool = "p", .device = {.pick = DevicePick::kAny, .min_free = More(MiB(32), i)}};
    const uint64_t before = core.core->CountJudged();
    const CallId call =
        AcquireGang(core, waiting, {.members = std::vector<GangMember>(kMaxGangMembers, member)}, i);
    ASSERT_FALSE(core.Answered(call)) << i << ": " << core.StatusOf(call);
    ASSERT_LE(core.core->CountJudged() - before, kFew) << "when " << i << " wait";
  }
  for (int round = 0; round < 4; ++round) {
    const uint64_t before = core.core->CountJudged();
    core.Release(other, core.MustAcquire(other, {.pool = "p", .holder_key = "another"}).acquisition);
    EXPECT_LE(core.core->CountJudged() - before, 2 * kFew) << round;
  }
}

// Each waiter waits for the bytes of a permit, and is passed until the pool is held for it. Then its session allocates
// bytes that it would need, too.
TEST(CoreSearchTest, UnservableHeldWaitersCostOthersNoSteps) {
  Config config = ConfigOf();
  config.limits.passes_before_hold = 1;
  config.devices[0].granularity = Bytes(4096);
  CoreHarness core(config);
  Peer waiting = core.Open(1), other = core.Open(2);
  const auto constraint = [](DeviceConstraint on_first) {
    on_first.pick = DevicePick::kNamed;
    on_first.uuid = "DEVICE-0";
    return on_first;
  };
  core.MustAcquire(waiting, {.pool = "p", .holder_key = "h", .device = constraint({.declared = MiB(30)})});
  const auto acquire = [&] { return core.Acquire(other, {.pool = "p", .holder_key = "another"}); };
  const auto release = [&](CallId granted) { core.Release(other, core.Get<AcquireResult>(granted).acquisition); };
  for (uint64_t i = 0; i < 2 * kFew; ++i) {
    const Bytes need = Bytes(MiB(40).count() - i * 4096);
    const CallId waits = Acquire(core, waiting, {.pool = "p", .device = constraint({.min_free = need})}, i);
    CallId passes = acquire();
    for (uint64_t granted = 1; core.Answered(passes); ++granted) {
      ASSERT_LT(granted, kFew) << "the pool is not held for waiter " << i;
      release(passes);
      passes = acquire();
    }
    ASSERT_FALSE(core.Answered(waits)) << core.StatusOf(waits);
    core.MustAllocate(waiting, Bytes(4096));
    ASSERT_TRUE(core.Answered(passes)) << "the pool is held for waiter " << i << ", which lacks bytes";
    release(passes);
  }
  for (int round = 0; round < 4; ++round) {
    const uint64_t before = core.core->CountJudged();
    const CallId granted = acquire();
    const uint64_t acquired = core.core->CountJudged();
    release(granted);
    EXPECT_LE(acquired - before, kFew) << round;
    EXPECT_LE(core.core->CountJudged() - acquired, kFew) << round;
  }
}

TEST(CoreSearchTest, ReturningUnitsServeWaiterWithoutFullSearch) {
  CoreHarness core(ConfigOf());
  Peer waiting = core.Open(1), other = core.Open(2);
  // Each request takes most of a device: the first that fits is granted, and then none fits.
  std::vector<AcquireResult> held;
  for (uint64_t i = 0; i < 4; ++i) {
    const DeviceConstraint constraint = {
        .pick = DevicePick::kNamed, .uuid = absl::StrCat("DEVICE-", i), .declared = MiB(30)};
    held.push_back(core.MustAcquire(other, {.pool = "p", .holder_key = absl::StrCat("h", i), .device = constraint}));
  }
  std::vector<CallId> calls;
  for (uint64_t i = 0; i < kWaiters; ++i) {
    const DeviceConstraint constraint = {.pick = DevicePick::kAny, .declared = Bytes(MiB(30).count() - i)};
    calls.push_back(Acquire(core, waiting, {.pool = "p", .device = constraint}, i));
  }
  for (uint64_t i = 0; i < 4; ++i) {
    const uint64_t before = core.core->CountJudged();
    core.Release(other, held[i].acquisition);
    EXPECT_TRUE(core.Answered(calls[i]));
    EXPECT_FALSE(core.Answered(calls[i + 1]));
    EXPECT_LE(core.core->CountJudged() - before, kFew);
  }
}

}  // namespace
}  // namespace berth::core
