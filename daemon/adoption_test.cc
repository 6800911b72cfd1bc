// What a broker makes of processes that the ledger has and nobody's hands: vault and broker died at once, and the
// service manager kept nothing of them.

#include "daemon/adoption.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <variant>

#include "absl/time/time.h"
#include "daemon/broker/recorded_call.h"
#include "daemon/service/listening_front.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

class AdoptionTest : public testing::Test, protected service::ListeningFront {
 protected:
  AdoptionTest()
      : ListeningFront("adoption-test", /*custody_limit=*/100),
        fences_(custody_.get()),
        blocks_(loop_.get(), broker_.get(), custody_.get(), /*epoch=*/2) {}

  // A session's only process, which was of that pid when it joined, takes a permit.
  void Acquire(int32_t pid) {
    core::Caller caller;
    broker_->Step([&](core::Core& core, absl::Time now, core::Effects*) {
      caller.credentials.session = core.OpenSession(now, {}, {}, "test", {}).value();
      caller.credentials.channel = core.JoinSession(now, caller.credentials.session, {}, {}, {.pid = pid}).value();
    });
    RecordedCall call;
    broker_->Submit(broker_->NewCall(), &call,
                    [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
                      core.Acquire(now, id, caller, {.sequence = 1}, {.pool = "gpu-tests"}, effects);
                    });
    const absl::StatusOr<core::Response> taken = call.Await();
    ASSERT_TRUE(taken.ok()) << taken.status();
  }
  // Returns how many permits are out once all is adopted that the ledger has.
  uint64_t OutOnceAdopted() {
    const core::Standing standing = broker_->Read([](const core::Core& core) { return core.WhatStands(); });
    const Adopters adopters = {*broker_, *front_, blocks_, fences_, *custody_, /*after_a_loss=*/true};
    HeldFds held;
    const absl::StatusOr<Losses> losses = AdoptLeases(standing, adopters, &held);
    EXPECT_TRUE(losses.ok()) << losses.status();
    if (losses.ok()) TellLosses(*losses, adopters);
    return broker_->Read([](const core::Core& core) { return core.GetPool("gpu-tests")->out; });
  }
  // What was put into custody says when such a process is gone.
  uint64_t ProcessesInVault() {
    uint64_t count = 0;
    for (absl::StatusOr<BrokerRequest> request = vault_->Read(); request.ok(); request = vault_->Read()) {
      const auto* const put = std::get_if<PutRequest>(&*request);
      if (put != nullptr && put->key.kind == custody::Kind::kPidfd) ++count;
    }
    return count;
  }

  FenceKeeper fences_;
  BlockKeeper blocks_;
};

TEST_F(AdoptionTest, WhatAProcessHoldsThatNobodySeesStaysOut) {
  // Of a PID namespace that is not the daemon's, nor below it: nothing can say when it is gone.
  Acquire(/*pid=*/0);
  EXPECT_EQ(OutOnceAdopted(), 1u);
  EXPECT_EQ(ProcessesInVault(), 1u);
}

TEST_F(AdoptionTest, WhatAProcessHoldsThatLivesStaysOut) {
  Acquire(::getpid());
  EXPECT_EQ(OutOnceAdopted(), 1u);
  EXPECT_EQ(ProcessesInVault(), 1u);
}

TEST_F(AdoptionTest, WhatAProcessHeldThatHasDiedMeanwhileIsBack) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  Acquire(child);
  EXPECT_EQ(OutOnceAdopted(), 0u);
  EXPECT_EQ(ProcessesInVault(), 0u);
}

}  // namespace
}  // namespace berth
