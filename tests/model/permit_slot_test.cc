// Makes spin search every run of the model of common/wire/permit_slot.h, and checks that spin finds the errors of
// deliberately broken variants. The gate searches two processes and one unit, the soak also three processes and two
// units. BERTH_MODEL_FULL=1 searches three processes in every variant; that takes minutes.

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/model/spin.h"
#include "tests/support/environment.h"

namespace berth {
namespace {

// Three processes, two units, two acquires of each process; and two processes, one unit, three acquires, which has far
// fewer runs.
constexpr char kThree[] = "-DCLIENTS=3 -DCAP=2 -DROUNDS=2";
constexpr char kTwo[] = "-DCLIENTS=2 -DCAP=1 -DROUNDS=3";

class PermitSlotModelTest : public SpinTest {
 protected:
  PermitSlotModelTest() : SpinTest("permit_slot.pml") {}

  void ExpectHolds(const std::string& variant) {
    const bool three = std::getenv("BERTH_MODEL_FULL") != nullptr || (testing::Soaks() && variant.empty());
    SpinTest::ExpectHolds(absl::StrCat(three ? kThree : kTwo, " ", variant), three);
  }
  void ExpectFound(const std::string& variant, const std::string& what) {
    SpinTest::ExpectFound(absl::StrCat(kTwo, " ", variant), what);
  }
};

TEST_F(PermitSlotModelTest, ExclusionConservationAndWakeUpsHold) {
  ExpectHolds("");
}

TEST_F(PermitSlotModelTest, InvariantsHoldUnderStopsDeathsAndRevocations) {
  ExpectHolds("-DSTOPS");
  ExpectHolds("-DDIES");
  ExpectHolds("-DREVOKES");
  ExpectHolds("-DSTOPS -DDIES -DREVOKES");
}

TEST_F(PermitSlotModelTest, MissingSecondReadLosesWakeUp) {
  ExpectFound("-DNO_SECOND_READ", "invalid end state");
  ExpectFound("-DREAD_FIRST", "invalid end state");
}

TEST_F(PermitSlotModelTest, TakingBeforeNotifyingLosesWakeUp) {
  ExpectFound("-DTAKE_FIRST", "invalid end state");
}

TEST_F(PermitSlotModelTest, BrokerWithoutSecondLookWaitsForStoppedProcess) {
  ExpectFound("-DSTOPS -DNO_LOOK", "invalid end state");
}

TEST_F(PermitSlotModelTest, NonAtomicStepsAdmitTooMany) {
  ExpectFound("-DNO_CAS", "assertion violated (users");
  ExpectFound("-DREVOKES -DBLIND_PUT", "assertion violated (users");
}

}  // namespace
}  // namespace berth
