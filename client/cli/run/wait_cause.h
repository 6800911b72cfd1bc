// Explains in text why a request for permits waits.

#ifndef CLIENT_CLI_RUN_WAIT_CAUSE_H_
#define CLIENT_CLI_RUN_WAIT_CAUSE_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "berth/v1/permit.pb.h"

namespace berth::cli {

// Returns the end of a sentence: "0 of 2 free", "an exclusive permit is out".
std::string DescribeCause(const v1::WaitExplanation& wait);

// A direct or indirect parent process of this process.
struct Ancestor {
  pid_t pid = 0;
  // Short name of the process (comm).
  std::string name;
  // Whether the process is a `berth` that runs a command.
  bool runs = false;
  // Whether the process was started in another session than this process's, which still lives.
  bool in_session = false;
};

// Returns this process's ancestors from /proc, the parent first.
std::vector<Ancestor> ReadAncestors();

// The shells for which `berth acquire` holds permits, by their holder processes.
using Owners = std::map<pid_t, pid_t>;

// Returns the owners of the holder processes among the holders, as far as this process may read them.
Owners ReadOwners(const v1::WaitExplanation& wait);

// Returns a sentence if the wait may never end because an ancestor holds, or may hold, the awaited permit. Without
// BERTH_SESSION, for example behind sudo, a run inside a run waits for its own end. Empty if no holder can be an
// ancestor.
std::string DescribeAncestor(const v1::WaitExplanation& wait, const std::vector<Ancestor>& ancestors,
                             const Owners& owners = {});

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_WAIT_CAUSE_H_
