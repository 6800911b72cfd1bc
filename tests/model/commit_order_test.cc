// Makes spin search every run of the model of the order of a broker's actions, with its death in between. Checks that
// spin finds the errors of deliberately broken variants. The soak searches more calls and deaths than the gate.
// BERTH_MODEL_FULL=1 searches even more; that takes minutes.

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
    const char* const bounds = full ? "-DROUNDS=4 -DCRASHES=4 " : testing::Soaks() ? "" : "-DROUNDS=1 -DCRASHES=1 ";
    SpinTest::ExpectHolds(absl::StrCat(bounds, variant), full);
  }
};

TEST_F(CommitOrderModelTest, InvariantsHoldAcrossBrokerDeathAnywhere) { ExpectHolds(""); }

TEST_F(CommitOrderModelTest, InvariantsHoldWhereClientsDie) { ExpectHolds("-DDIES"); }

TEST_F(CommitOrderModelTest, EffectOrAnswerBeforePersistenceIsFound) {
  ExpectFound("-DEFFECT_FIRST", "assertion violated");
  ExpectFound("-DREPLY_FIRST", "assertion violated");
}

TEST_F(CommitOrderModelTest, FdMissingWhileRecordIsReadableIsFound) {
  ExpectFound("-DDROP_FIRST", "assertion violated ((holder");
  ExpectFound("-DPUT_LAST", "assertion violated fd_store");
}

TEST_F(CommitOrderModelTest, CallWithoutLedgerAnswerWaitsForItself) {
  ExpectFound("-DNO_ANSWERS", "invalid end state");
}

TEST_F(CommitOrderModelTest, UnnoticedDeathWithoutBrokerIsFound) {
  ExpectFound("-DDIES -DNO_LOOK", "invalid end state");
}

}  // namespace
}  // namespace berth
