// How a broker handles processes that are in the ledger without any fd: supervisor and broker died at once, and the
// service manager stored no fds of them.

#include "daemon/recovery/adoption.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <variant>

#include "absl/time/time.h"
#include "daemon/broker/testing/recorded_call.h"
#include "daemon/service/testing/listening_attach_server.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

class AdoptionTest : public testing::Test, protected service::ListeningAttachServer {
 protected:
  AdoptionTest()
      : ListeningAttachServer("adoption-test", /*fd_store_limit=*/100),
        fences_(fd_store_.get()),
        blocks_(loop_.get(), broker_.get(), fd_store_.get(), /*epoch=*/2) {}

  // Lets a session's only process, which had that pid when it joined, acquire a permit.
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
  // Returns the permit units in use after the adoption of the whole ledger.
  uint64_t OutOnceAdopted() {
    const core::RestoredState restored_state = broker_->Read([](const core::Core& core) { return core.WhatStands(); });
    const Adopters adopters = {.broker = *broker_,
                               .attach = *server_,
                               .blocks = blocks_,
                               .fences = fences_,
                               .fd_store = *fd_store_,
                               .after_a_loss = true};
    HeldFds held;
    const absl::StatusOr<Losses> losses = AdoptLeases(restored_state, adopters, &held);
    EXPECT_TRUE(losses.ok()) << losses.status();
    if (losses.ok()) NotifyLosses(*losses, adopters);
    return broker_->Read([](const core::Core& core) { return core.GetPool("gpu-tests")->out; });
  }
  // Returns the number of pidfds that were put into the fd store.
  uint64_t ProcessesInSupervisor() {
    uint64_t count = 0;
    for (absl::StatusOr<BrokerRequest> request = supervisor_->Read(); request.ok(); request = supervisor_->Read()) {
      const auto* const put = std::get_if<PutRequest>(&*request);
      if (put != nullptr && put->key.kind == fd_store::Kind::kPidfd) ++count;
    }
    return count;
  }

  FencePageManager fences_;
  BlockManager blocks_;
};

TEST_F(AdoptionTest, LeaseOfUnseenProcessStaysOut) {
  // A process of a PID namespace that is neither the daemon's nor below it: nothing can report its end.
  Acquire(/*pid=*/0);
  EXPECT_EQ(OutOnceAdopted(), 1u);
  EXPECT_EQ(ProcessesInSupervisor(), 0u) << "what stands in for a pidfd is no proof";
}

TEST_F(AdoptionTest, LeaseOfLivingProcessStaysOut) {
  Acquire(::getpid());
  EXPECT_EQ(OutOnceAdopted(), 1u);
  EXPECT_EQ(ProcessesInSupervisor(), 1u);
}

TEST_F(AdoptionTest, LeaseOfDeadProcessIsReturned) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  Acquire(child);
  EXPECT_EQ(OutOnceAdopted(), 0u);
  EXPECT_EQ(ProcessesInSupervisor(), 0u);
}

}  // namespace
}  // namespace berth
