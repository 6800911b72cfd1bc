// The keeper: a process that holds a permit for another one that cannot, such as a shell, and ends with it.
//
// `berth acquire` starts it and prints what it was granted; it watches its owner by a pidfd, so that the permit comes
// back however the owner ends. `berth release` finds it by the variable that names it.

#ifndef CLIENT_CLI_KEEPER_H_
#define CLIENT_CLI_KEEPER_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/exit_status.h"
#include "client/cli/permit_wish.h"
#include "client/cli/verbs.h"
#include "common/unique_fd.h"

namespace berth::cli {

// Names the keeper of the last permit that was acquired for a shell: "<pid> <token> <NAME>…", with the names of what
// was set in its environment for that.
inline constexpr char kKeeperVariable[] = "BERTH_PERMIT_KEEPER";

// What a keeper is told on its command line, as `berth acquire --keep=<owner's pidfd>,<socket>,<token>`.
struct KeeperTask {
  // Readable when the owner has ended.
  int owner = -1;
  // SEQPACKET, to who started it: takes the answer, and brings one message once that was passed on.
  int report = -1;
  // By which it is known, beside its pid.
  std::string token;
};

// Errors: kInvalidArgument.
absl::StatusOr<KeeperTask> ParseKeeperTask(absl::string_view text);
std::string FormatKeeperTask(const KeeperTask& task);

// What the keeper reports.
struct KeeperReport {
  // 0 when the permit was granted; else how to end, with what there is to say said on stderr.
  int code = 0;
  // NAME=VALUE: what the owner is to have in its environment.
  std::vector<std::string> environment;
};

std::string FormatKeeperReport(const KeeperReport& report);
// Errors: kInvalidArgument.
absl::StatusOr<KeeperReport> ParseKeeperReport(absl::string_view text);

// How a keeper tells its owner what happens to the permit.
struct KeeperManners {
  // On stderr, where that is a terminal.
  bool say = false;
  // By the signal of this name, when it is taken away; empty for none.
  std::string on_revoke;
};

// Is the keeper: acquires, reports, holds until its owner has ended or SIGTERM comes, gives back. Ends earlier where
// the one that started it does before the report was passed on.
ExitStatus Keep(const Globals& globals, const PermitWish& wish, const KeeperManners& manners, const KeeperTask& task);

// A keeper that runs, found by what kKeeperVariable has.
struct FoundKeeper {
  pid_t pid = 0;
  UniqueFd pidfd;
  // What it was started with: the owner's environment before the permit.
  std::vector<std::string> environment;
};

// The names in kKeeperVariable's value. Errors: kInvalidArgument where it is none.
absl::StatusOr<std::vector<std::string>> NamesOfKeeper(absl::string_view value);
// Errors: kNotFound when there is no such keeper any more; kInvalidArgument.
absl::StatusOr<FoundKeeper> FindKeeper(absl::string_view value);

// `text` as one word of a POSIX shell.
std::string ShellQuote(absl::string_view text);
// Lines for a POSIX shell: sets entries of NAME=VALUE; gives each name the value that `before` has for it, or none.
std::string ShellExports(const std::vector<std::string>& entries);
std::string ShellRestore(const std::vector<std::string>& names, const std::vector<std::string>& before);

}  // namespace berth::cli

#endif  // CLIENT_CLI_KEEPER_H_
