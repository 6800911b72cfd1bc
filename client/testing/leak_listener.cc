#include "client/testing/leak_listener.h"

#include <unistd.h>

#include <vector>

#include <berth/bytes.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/transport/live_object_counts.h"
#include "client/testing/environment.h"
#include "common/steady_clock.h"

namespace berth::testing {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(5);

uint64_t More(uint64_t before, uint64_t after) { return after > before ? after - before : 0; }

std::string Counted(uint64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

// Returns the daemon's view of the test's session. The labels in it are the test's own and help to find the leak.
std::string AskTheDaemon() {
  const Environment* const environment = Environment::Get();
  if (environment == nullptr || environment->session() == nullptr) return "";
  const Inspector inspector(environment->session());
  const uint64_t session = environment->session()->id().value();
  std::string text;
  if (const auto permits = inspector.ListPermits(); permits.ok()) {
    for (const v1::Permit& permit : permits->permits()) {
      if (permit.session() != session) continue;
      absl::StrAppend(&text, "\n  the session has permit ", permit.id(), ": ", permit.units(), " of pool ",
                      permit.pool(), ", \"", permit.label(), "\"");
    }
  }
  if (const auto blocks = inspector.ListBlocks(); blocks.ok()) {
    for (const v1::Block& block : blocks->blocks()) {
      bool ours = block.owner() == session;
      for (const v1::Import& import : block.imports()) ours = ours || import.session() == session;
      if (!ours) continue;
      absl::StrAppend(&text, "\n  the session has block ", block.handle().block(), ": ",
                      FormatBytes(Bytes(block.bytes())), ", \"", block.label(), "\"");
    }
  }
  return text;
}

// Returns the leak since `before`, after threads that are about to release resources had time to do so.
std::string FindLeak(const Holdings& before) {
  const absl::Time deadline = SteadyNow() + LeakListener::kPatience;
  std::string leak;
  while (!(leak = DescribeLeak(before, Holdings::Now())).empty() && SteadyNow() < deadline)
    absl::SleepFor(kPause);
  return leak;
}

}  // namespace

Holdings Holdings::Now() {
  const internal::LiveObjectCounts& live_object_counts = internal::live_object_counts;
  return {.permits = live_object_counts.permits.load(),
          .blocks = live_object_counts.blocks.load(),
          .bytes = live_object_counts.bytes.load(),
          .reservations = live_object_counts.reservations.load(),
          .plans = live_object_counts.plans.load()};
}

std::string DescribeLeak(const Holdings& before, const Holdings& after) {
  std::vector<std::string> parts;
  if (const uint64_t more = More(before.permits, after.permits)) parts.push_back(Counted(more, "permit"));
  if (const uint64_t more = More(before.blocks, after.blocks)) {
    parts.push_back(
        absl::StrCat(Counted(more, "block"), " of ", FormatBytes(Bytes(More(before.bytes, after.bytes)))));
  }
  if (const uint64_t more = More(before.reservations, after.reservations)) {
    parts.push_back(Counted(more, "reservation"));
  }
  if (const uint64_t more = More(before.plans, after.plans)) parts.push_back(Counted(more, "plan"));
  return absl::StrJoin(parts, ", ");
}

void LeakListener::OnTestSuiteStart(const ::testing::TestSuite&) {
  before_suite_ = Holdings::Now();
  tests_leaked_ = false;
}

void LeakListener::OnTestStart(const ::testing::TestInfo&) { before_test_ = Holdings::Now(); }

void LeakListener::OnTestEnd(const ::testing::TestInfo& test) {
  const std::string leak = FindLeak(before_test_);
  if (leak.empty()) return;
  tests_leaked_ = true;
  ADD_FAILURE() << test.test_suite_name() << "." << test.name() << " leaks " << leak << AskTheDaemon();
}

void LeakListener::OnTestSuiteEnd(const ::testing::TestSuite& suite) {
  if (tests_leaked_) return;
  const std::string leak = FindLeak(before_suite_);
  if (leak.empty()) return;
  ADD_FAILURE() << "test suite " << suite.name() << " leaks " << leak << AskTheDaemon();
}

}  // namespace berth::testing
