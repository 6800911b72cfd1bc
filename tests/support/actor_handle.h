// Actor: a real client process that does what a test tells it, line by line (tests/support/actor.cc).

#ifndef TESTS_SUPPORT_ACTOR_HANDLE_H_
#define TESTS_SUPPORT_ACTOR_HANDLE_H_

#include <stdlib.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/block_handle.h"
#include "common/ids.h"
#include "gtest/gtest.h"
#include "tests/support/subprocess.h"
#include "tests/support/test_daemon.h"

namespace berth::testing {

struct ActorOptions {
  // The user to become before anything else; 0 stays.
  uid_t uid = 0;
  bool pid_namespace = false;
  // As SubprocessOptions::environment.
  std::vector<std::string> environment;
  // Open a session at once; fatal where that fails.
  bool open = true;
  // Whose process it is; one that speaks as the actor does.
  std::string program = "tests/support/actor";
};

// Runs its tests twice, once for each kind of block that actors ask for by themselves: "fd", "ipc".
class EachExportKind : public ::testing::TestWithParam<const char*> {
 public:
  static auto Kinds() { return ::testing::Values("fd", "ipc"); }

 protected:
  EachExportKind() { ::setenv("BERTH_ACTOR_KIND", GetParam(), 1); }
  ~EachExportKind() override { ::unsetenv("BERTH_ACTOR_KIND"); }
};

// Move-only; the process ends with it. One thread at a time.
class Actor {
 public:
  explicit Actor(const TestDaemon& daemon, const ActorOptions& options = {});
  explicit Actor(const std::string& folder, const ActorOptions& options = {});

  // Sends a command and waits for its answer.
  // Returns: the answer's text. Errors: the actor's own, with reason and figures; kOutOfRange when it has
  // ended.
  absl::StatusOr<std::string> Ask(absl::string_view command);

  // The two halves of Ask().
  void Tell(absl::string_view command) { process_.WriteLine(command); }
  absl::StatusOr<std::string> Answer(absl::Duration patience = kPatience);

  // Ask(), fatal on an error; and what it answers, read.
  std::string Do(absl::string_view command);
  SessionId session();
  BlockHandle Allocate(absl::string_view name, uint64_t bytes);

  Subprocess& process() { return process_; }
  pid_t pid() const { return process_.pid(); }
  // SIGKILL, and waits until it is gone.
  void Kill();
  // Ends it in good order.
  void Quit();

 private:
  Subprocess process_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_HANDLE_H_
