#include "daemon/supervisor/processes/launch_supervisor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/supervisor/processes/child_process.h"

namespace berth {

absl::StatusOr<UniqueFd> LaunchSupervisor(std::vector<std::string> flags) {
  BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
  flags.push_back("--role=vault");
  flags.push_back(absl::StrCat("--broker-fd=", kChildFd));
  BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(flags, sockets.second.get()));
  process.Leave();
  return std::move(sockets.first);
}

}  // namespace berth
