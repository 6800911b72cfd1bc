// NodeFile: a simulated node's file (docs/guides/simulated_nodes.md) owned by a test. Each update replaces the file
// atomically, because the daemon may read it at any time.

#ifndef TESTS_SUPPORT_DAEMON_NODE_FILE_H_
#define TESTS_SUPPORT_DAEMON_NODE_FILE_H_

#include <stdio.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth::testing {

class NodeFile {
 public:
  // The daemon reads the file every `refresh`. `devices` are its [[device]] tables.
  explicit NodeFile(std::string devices, std::string refresh = "20ms")
      : path_(absl::StrCat(::testing::TempDir(), "/node-", ::getpid(), "-", ++Count(), ".toml")),
        devices_(std::move(devices)),
        refresh_(std::move(refresh)) {
    Now("");
  }
  NodeFile(const NodeFile&) = delete;
  NodeFile& operator=(const NodeFile&) = delete;
  ~NodeFile() { Remove(); }

  // Sets the devices' current state: [now.N] tables that replace the earlier ones.
  void Now(const std::string& now) const {
    const std::string next = path_ + ".next";
    std::ofstream(next) << "refresh = \"" << refresh_ << "\"\n" << devices_ << "\n" << now << "\n";
    EXPECT_EQ(::rename(next.c_str(), path_.c_str()), 0);
  }
  void Remove() const { ::unlink(path_.c_str()); }

  // The flag with which a daemon presents this node.
  std::string flag() const { return absl::StrCat("--host-devices-file=", path_); }

 private:
  static int& Count() {
    static int count = 0;
    return count;
  }

  const std::string path_;
  const std::string devices_;
  const std::string refresh_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_DAEMON_NODE_FILE_H_
