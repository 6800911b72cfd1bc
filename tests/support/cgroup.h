// Cgroup: a control group of the unified hierarchy, for tests of processes in it.

#ifndef TESTS_SUPPORT_CGROUP_H_
#define TESTS_SUPPORT_CGROUP_H_

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

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
  // Empty where none can be created.
  explicit Cgroup(const std::string& name) {
    std::ifstream mounts("/proc/self/mounts");
    for (std::string line; std::getline(mounts, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ');
      if (fields.size() < 3 || fields[2] != "cgroup2") continue;
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
