// Cgroup: a control group, for tests of processes in it.

#ifndef TESTS_SUPPORT_CGROUP_H_
#define TESTS_SUPPORT_CGROUP_H_

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/support/testing.h"

namespace berth::testing {

// Removed with the object, once its processes have ended.
class Cgroup {
 public:
  // In the unified hierarchy, or in that of a controller of its own (cgroup v1). Empty where none can be created.
  explicit Cgroup(const std::string& name, const std::string& controller = "") {
    std::ifstream mounts("/proc/self/mounts");
    for (std::string line; std::getline(mounts, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ');
      if (fields.size() < 4 || fields[2] != (controller.empty() ? "cgroup2" : "cgroup")) continue;
      const std::vector<std::string> options = absl::StrSplit(fields[3], ',');
      if (!controller.empty() && std::find(options.begin(), options.end(), controller) == options.end()) continue;
      const std::string path = absl::StrCat(fields[1], "/", name, "-", ::getpid());
      if (::mkdir(path.c_str(), 0755) == 0) path_ = path;
      return;
    }
  }
  Cgroup(Cgroup&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ~Cgroup() {
    if (path_.empty()) return;
    EXPECT_TRUE(Eventually([this] { return ::rmdir(path_.c_str()) == 0 || errno != EBUSY; }));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_CGROUP_H_
