// Has spin look at every run of the model of what a broker does in which order, with its death in between, and sees
// that it finds what is broken on purpose. The soak looks at more calls and deaths than the gate; BERTH_MODEL_FULL=1 at
// more still, which takes minutes.

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/model/spin.h"
#include "tests/support/environment.h"

namespace berth {
namespace {

class CommitOrderModelTest : public SpinTest {
 protected:
  CommitOrderModelTest() : SpinTest("commit_order.pml") {}

  void ExpectHolds(const std::string& variant) {
    const bool full = std::getenv("BERTH_MODEL_FULL") != nullptr;
    const char* const bound = full ? "-DROUNDS=4 -DCRASHES=4 " : testing::Soaks() ? "" : "-DROUNDS=1 -DCRASHES=1 ";
    SpinTest::ExpectHolds(absl::StrCat(bound, variant), full);
  }
};

TEST_F(CommitOrderModelTest, ExclusionConservationAndWakeUpsHoldOverABrokersDeathAnywhere) { ExpectHolds(""); }

TEST_F(CommitOrderModelTest, TheyHoldWhereClientsDieToo) { ExpectHolds("-DDIES"); }

TEST_F(CommitOrderModelTest, WhatIsHeardBeforeItIsKeptIsLost) {
  ExpectFound("-DEFFECT_FIRST", "assertion violated");
  ExpectFound("-DREPLY_FIRST", "assertion violated");
}

TEST_F(CommitOrderModelTest, AnFdHasToBeInCustodyForAsLongAsItsRowMayBeRead) {
  ExpectFound("-DDROP_FIRST", "assertion violated ((holder");
  ExpectFound("-DPUT_LAST", "assertion violated custody");
}

TEST_F(CommitOrderModelTest, WithoutItsAnswerInTheLedgerACallWaitsForItself) {
  ExpectFound("-DNO_ANSWERS", "invalid end state");
}

TEST_F(CommitOrderModelTest, WhoDiesWhileThereIsNoBrokerHasToBeLookedFor) {
  ExpectFound("-DDIES -DNO_LOOK", "invalid end state");
}

}  // namespace
}  // namespace berth
