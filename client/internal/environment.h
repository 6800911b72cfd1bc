// What a client reads from its environment: where the daemon is, and the session that it inherited.

#ifndef CLIENT_INTERNAL_ENVIRONMENT_H_
#define CLIENT_INTERNAL_ENVIRONMENT_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth::internal {

// Names the folder of the daemon's sockets; has precedence over every default, and over the one in an
// inherited session's capsule.
inline constexpr char kFolderVariable[] = "BERTH_FOLDER";

// $BERTH_FOLDER; empty where that is not set.
std::string FolderFromEnvironment();

// $BERTH_FOLDER; else /run/berth if a daemon's socket is there; else $XDG_RUNTIME_DIR/berth; else /run/berth.
std::string DefaultFolder();

// `folder` as seen from "/", so that it means the same after a change of the working folder.
std::string Absolute(const std::string& folder);

// What BERTH_SESSION names.
struct InheritedFds {
  int lifeline = -1;
  int capsule = -1;
  // The process that opened the session and has both fds under these numbers, for those to whom they were not handed
  // down: a runner closed them, or a shell that the session was opened for never had them. 0 for none.
  int keeper = 0;
};

// "<lifeline>,<capsule>" or "<lifeline>,<capsule>,<keeper>". Errors: kInvalidArgument naming the text.
absl::StatusOr<InheritedFds> ParseInheritedFds(absl::string_view text);
std::string FormatInheritedFds(const InheritedFds& fds);

// The fds that this process's environment names; nothing if the variable is not set or empty.
absl::StatusOr<std::optional<InheritedFds>> InheritedFdsFromEnvironment();

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_ENVIRONMENT_H_
