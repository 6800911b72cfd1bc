// Makes spin search every run of the model of common/wire/take_up.h, and checks that spin finds the errors of
// deliberately broken variants. The gate searches two processes and one unit, the soak also three processes and two
// units.

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/model/spin.h"
#include "tests/support/environment.h"

namespace berth {
namespace {

class TakeUpModelTest : public SpinTest {
 protected:
  TakeUpModelTest() : SpinTest("take_up.pml") {}

  void ExpectHolds(const std::string& variant) {
    SpinTest::ExpectHolds(absl::StrCat("-DCLIENTS=2 -DCAP=1 ", variant), /*many_runs=*/false);
    if (testing::Soaks()) SpinTest::ExpectHolds(absl::StrCat("-DCLIENTS=3 -DCAP=2 ", variant), /*many_runs=*/true);
  }
  void ExpectFound(const std::string& variant, const std::string& what) {
    SpinTest::ExpectFound(absl::StrCat("-DCLIENTS=2 -DCAP=1 ", variant), what);
  }
};

TEST_F(TakeUpModelTest, UnitsAreNeverUsedTwiceNorLost) {
  ExpectHolds("");
  ExpectHolds("-DSTOPS");
  ExpectHolds("-DRESTARTS");
}

TEST_F(TakeUpModelTest, ProcessMustDecideByOneStep) {
  ExpectFound("-DREAD_THEN_WRITE", "assertion violated (users");
  ExpectFound("-DLATE", "assertion violated (users");
}

TEST_F(TakeUpModelTest, BrokerMustWithdrawUntakenGrantsOnly) {
  ExpectFound("-DBLIND", "assertion violated (users");
  ExpectFound("-DSTOPS -DNO_WITHDRAWAL", "invalid end state");
}

}  // namespace
}  // namespace berth
