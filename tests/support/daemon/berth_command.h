// BerthCommand: the `berth` command as a test runs it, against one daemon.

#ifndef TESTS_SUPPORT_DAEMON_BERTH_COMMAND_H_
#define TESTS_SUPPORT_DAEMON_BERTH_COMMAND_H_

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/subprocess.h"

namespace berth::testing {

// Thread-safe.
class BerthCommand {
 public:
  // `folder` is the folder of the daemon.
  explicit BerthCommand(const std::string& folder) : folder_(folder) {}

  // Starts it with `words`, as an argument of `wrapper` where that is not empty.
  Subprocess Start(const std::vector<std::string>& words, std::vector<std::string> wrapper = {}) const;
  // Returns its exit code.
  int Run(const std::vector<std::string>& words) const { return Start(words).Wait(); }
  // Return its output, as text or parsed as JSON, and expect it to succeed.
  std::string Show(const std::vector<std::string>& words) const;
  nlohmann::json ShowJson(std::vector<std::string> words) const;

 private:
  const std::string folder_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_DAEMON_BERTH_COMMAND_H_
