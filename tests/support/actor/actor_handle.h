// Actor: a real client process that runs a test's commands, one per line (tests/support/actor/actor.cc).

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_HANDLE_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_HANDLE_H_

#include <stdlib.h>

#include <string>
#include <vector>

#include <berth/block_handle.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"

namespace berth::testing {

struct ActorOptions {
  // The user that the process becomes first; 0 for the default user of clients.
  uid_t uid = 0;
  bool pid_namespace = false;
  // Environment changes, as SubprocessOptions::environment.
  std::vector<std::string> environment;
  // Opens a session at once; the case fails where that fails.
  bool open = true;
  // The program to run: any program that speaks the actor's protocol.
  std::string program = "tests/support/actor/actor";
};

// Runs its tests twice, once for each default export kind of actors: "fd", "ipc".
class EachExportKind : public ::testing::TestWithParam<const char*> {
 public:
  static auto Kinds() { return ::testing::Values("fd", "ipc"); }

 protected:
  EachExportKind() { ::setenv("BERTH_ACTOR_KIND", GetParam(), 1); }
  ~EachExportKind() override { ::unsetenv("BERTH_ACTOR_KIND"); }
};

// Move-only. Destroying it ends the process. One thread at a time.
class Actor {
 public:
  explicit Actor(const TestDaemon& daemon, const ActorOptions& options = {});
  explicit Actor(const std::string& folder, const ActorOptions& options = {});

  // Sends a command and waits for its answer.
  // Returns: the answer's text. Errors: the actor's own, with reason and values; kOutOfRange after the process has
  // ended.
  absl::StatusOr<std::string> Ask(absl::string_view command);

  // The two halves of Ask().
  void SendLine(absl::string_view command) { process_.WriteLine(command); }
  absl::StatusOr<std::string> Answer(absl::Duration patience = kPatience);

  // As Ask(). An error fails the case, which goes on with an empty text, the session 0 or an empty handle.
  std::string Do(absl::string_view command);
  SessionId session();
  // `kind` is "fd" or "ipc"; empty for the actor's default.
  BlockHandle Allocate(absl::string_view name, uint64_t bytes, absl::string_view kind = "");

  Subprocess& process() { return process_; }
  pid_t pid() const { return process_.pid(); }
  // Sends SIGKILL and waits until the process has ended.
  void Kill();
  // Ends the process in an orderly way.
  void Quit();

 private:
  Subprocess process_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_HANDLE_H_
