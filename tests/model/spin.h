// SpinTest: runs spin over a model of this folder.

#ifndef TESTS_MODEL_SPIN_H_
#define TESTS_MODEL_SPIN_H_

#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth {

class SpinTest : public ::testing::Test {
 protected:
  explicit SpinTest(const std::string& model) {
    char name[] = "/tmp/berth-model-XXXXXX";
    folder_ = ::mkdtemp(name);
    char here[4096];
    model_ = absl::StrCat(::getcwd(here, sizeof(here)), "/tests/model/", model);
  }
  ~SpinTest() override { std::filesystem::remove_all(folder_); }

  // Returns spin's output for the model with these definitions. For few runs, optimised compilation would take longer
  // than the search.
  std::string Search(const std::string& definitions, bool many_runs) {
    const std::string steps =
        absl::StrCat("cd ", folder_, " && spin ", definitions, " -a ", model_, " && gcc ", many_runs ? "-O2" : "-O0",
                     " -w -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -m100000");
    const int status = std::system(absl::StrCat("(", steps, ") >", folder_, "/said 2>&1").c_str());
    std::stringstream said;
    said << std::ifstream(folder_ + "/said").rdbuf();
    EXPECT_EQ(status, 0) << "is the package spin installed?\n" << said.str();
    // A truncated search proves nothing.
    EXPECT_FALSE(absl::StrContains(said.str(), "max search depth too small")) << said.str();
    return said.str();
  }
  void ExpectHolds(const std::string& definitions, bool many_runs) {
    const std::string said = Search(definitions, many_runs);
    EXPECT_TRUE(absl::StrContains(said, "errors: 0")) << definitions << "\n" << said;
    std::cout << definitions << said.substr(said.find("State-vector"), 120) << "\n";
  }
  void ExpectFound(const std::string& definitions, const std::string& what) {
    const std::string said = Search(definitions, /*many_runs=*/false);
    EXPECT_TRUE(absl::StrContains(said, what) && absl::StrContains(said, "errors: 1")) << definitions << "\n" << said;
  }

 private:
  std::string folder_;
  std::string model_;
};

}  // namespace berth

#endif  // TESTS_MODEL_SPIN_H_
