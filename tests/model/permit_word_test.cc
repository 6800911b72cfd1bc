// Has spin look at every run of the model of common/permit_word.h, and sees that it finds what is broken on purpose.
// The soak looks at three processes and two units, the gate at two and one; BERTH_MODEL_FULL=1 at three in every
// variant, which takes minutes.

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/model/spin.h"
#include "tests/support/environment.h"

namespace berth {
namespace {

// Three processes, two units, each process acquires twice; and two, one, three times, which has far fewer runs.
constexpr char kThree[] = "-DCLIENTS=3 -DCAP=2 -DROUNDS=2";
constexpr char kTwo[] = "-DCLIENTS=2 -DCAP=1 -DROUNDS=3";

class PermitWordModelTest : public SpinTest {
 protected:
  PermitWordModelTest() : SpinTest("permit_word.pml") {}

  void ExpectHolds(const std::string& variant) {
    const bool three = std::getenv("BERTH_MODEL_FULL") != nullptr || (testing::Soaks() && variant.empty());
    SpinTest::ExpectHolds(absl::StrCat(three ? kThree : kTwo, " ", variant), three);
  }
  void ExpectFound(const std::string& variant, const std::string& what) {
    SpinTest::ExpectFound(absl::StrCat(kTwo, " ", variant), what);
  }
};

TEST_F(PermitWordModelTest, ExclusionConservationAndWakeUpsHoldForThreeProcessesAndTwoUnits) {
  ExpectHolds("");
}

TEST_F(PermitWordModelTest, TheyHoldWhereProcessesAreStoppedEndAndArePutOut) {
  ExpectHolds("-DSTOPS");
  ExpectHolds("-DDIES");
  ExpectHolds("-DREVOKES");
  ExpectHolds("-DSTOPS -DDIES -DREVOKES");
}

TEST_F(PermitWordModelTest, WithoutTheSecondReadAWakeUpIsLost) {
  ExpectFound("-DNO_SECOND_READ", "invalid end state");
  ExpectFound("-DREAD_FIRST", "invalid end state");
}

TEST_F(PermitWordModelTest, ABrokerThatTakesBeforeItTellsLosesOneToo) {
  ExpectFound("-DTAKE_FIRST", "invalid end state");
}

TEST_F(PermitWordModelTest, ABrokerThatDoesNotLookAgainWaitsForOneThatIsStopped) {
  ExpectFound("-DSTOPS -DNO_LOOK", "invalid end state");
}

TEST_F(PermitWordModelTest, StepsThatAreTwoLetTooManyIn) {
  ExpectFound("-DNO_CAS", "assertion violated (users");
  ExpectFound("-DREVOKES -DBLIND_PUT", "assertion violated (users");
}

}  // namespace
}  // namespace berth
