// How a broker handles processes that are in the ledger without any fd: supervisor and broker died at once, and the
// service manager stored no fds of them.

#include "daemon/recovery/adoption.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <variant>
#include <vector>

#include <berth/ids.h>

#include "absl/time/time.h"
#include "common/os/unique_fd.h"
#include "common/wire/session_credentials.h"
#include "daemon/base/credentials_holders.h"
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
  // Opens a session whose credentials no process holds. Its opener had that pid.
  SessionId OpenWithoutHolders(int32_t opener) {
    const UniqueFd credentials_fd = WriteSessionCredentials({.folder = "/run/berth"}).value();
    SessionId session;
    broker_->Step([&](core::Core& core, absl::Time now, core::Effects*) {
      session = core.OpenSession(now, {}, {}, "test", {.pid = opener}).value();
      core.RecordSessionCredentials(now, session, InodeOf(credentials_fd.get()).value());
    });
    return session;
  }
  // Waits until these are the sessions. Returns whether they are.
  bool SessionsBecome(const std::vector<SessionId>& expected) {
    return service::Becomes([&] {
      std::vector<SessionId> sessions;
      const auto known = broker_->Read([](const core::Core& core) { return core.WhatStands().lifelines; });
      for (const auto& lifeline : known) sessions.push_back(lifeline.session);
      return sessions == expected;
    });
  }
  // Returns the permit units in use after the adoption of the whole ledger.
  uint64_t OutOnceAdopted(bool pids_are_known = true) {
    const core::RestoredState restored_state = broker_->Read([](const core::Core& core) { return core.WhatStands(); });
    const Adopters adopters = {.broker = *broker_,
                               .attach = *server_,
                               .blocks = blocks_,
                               .fences = fences_,
                               .fd_store = *fd_store_,
                               .after_a_loss = true,
                               .pids_are_known = pids_are_known};
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

// An empty search proves the end of those processes only that the daemon's PID namespace shows.
TEST_F(AdoptionTest, SessionOfUnseenOpenerStays) {
  const SessionId unseen = OpenWithoutHolders(/*opener=*/0);
  OpenWithoutHolders(::getpid());
  OutOnceAdopted();
  EXPECT_TRUE(SessionsBecome({unseen})) << "the searches that end the other session do not end it";
}

TEST_F(AdoptionTest, SessionOfOtherPidNamespaceStays) {
  const SessionId unseen = OpenWithoutHolders(::getpid());
  OutOnceAdopted(/*pids_are_known=*/false);
  // The next daemon is in the same namespace as this one.
  OpenWithoutHolders(::getpid());
  OutOnceAdopted();
  EXPECT_TRUE(SessionsBecome({unseen}));
}

}  // namespace
}  // namespace berth
