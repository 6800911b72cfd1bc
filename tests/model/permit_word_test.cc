// Has spin look at every run of the model of common/permit_word.h, and sees that it finds what is broken on purpose.
// BERTH_MODEL_FULL=1 looks at three processes and two units in every variant; that takes minutes.

#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// Three processes, two units, each process acquires twice; and two, one, three times, which has far fewer runs.
constexpr char kThree[] = "-DCLIENTS=3 -DCAP=2 -DROUNDS=2";
constexpr char kTwo[] = "-DCLIENTS=2 -DCAP=1 -DROUNDS=3";

class PermitWordModelTest : public testing::Test {
 protected:
  PermitWordModelTest() {
    char name[] = "/tmp/berth-model-XXXXXX";
    folder_ = ::mkdtemp(name);
    char here[4096];
    model_ = absl::StrCat(::getcwd(here, sizeof(here)), "/tests/model/permit_word.pml");
  }
  ~PermitWordModelTest() override { std::filesystem::remove_all(folder_); }

  // What spin says of the model with these definitions.
  std::string Search(const std::string& definitions) {
    const std::string steps = absl::StrCat("cd ", folder_, " && spin ", definitions, " -a ", model_,
                                           // For few runs the compiler would take longer than the search.
                                           " && gcc ", absl::StrContains(definitions, kThree) ? "-O2" : "-O1",
                                           " -w -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m100000");
    const int status = std::system(absl::StrCat("(", steps, ") >", folder_, "/said 2>&1").c_str());
    std::stringstream said;
    said << std::ifstream(folder_ + "/said").rdbuf();
    EXPECT_EQ(status, 0) << "is the package spin installed?\n" << said.str();
    // A search that was cut short says nothing.
    EXPECT_FALSE(absl::StrContains(said.str(), "max search depth too small")) << said.str();
    return said.str();
  }
  void ExpectHolds(const std::string& variant) {
    const char* const full = std::getenv("BERTH_MODEL_FULL");
    const std::string size = full != nullptr || variant.empty() ? kThree : kTwo;
    const std::string said = Search(absl::StrCat(size, " ", variant));
    EXPECT_TRUE(absl::StrContains(said, "errors: 0")) << variant << "\n" << said;
    std::cout << variant << said.substr(said.find("State-vector"), 120) << "\n";
  }
  void ExpectFound(const std::string& variant, const std::string& what) {
    const std::string said = Search(absl::StrCat(kTwo, " ", variant));
    EXPECT_TRUE(absl::StrContains(said, what) && absl::StrContains(said, "errors: 1")) << variant << "\n"
                                                                                       << said;
  }

 private:
  std::string folder_;
  std::string model_;
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
