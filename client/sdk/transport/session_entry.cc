#include "client/sdk/transport/session_entry.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/sdk/transport/environment.h"
#include "common/os/os_error.h"
#include "common/os/process_start.h"
#include "common/status_macros.h"
#include "common/wire/session_credentials.h"

namespace berth::internal {
namespace {

// Start of the link target of a session credentials's fd (session_credentials.h).
constexpr char kCredentialsTarget[] = "/memfd:berth-session";
constexpr char kWayOut[] = "pass the session's fds on, or unset the variable to open another session";

absl::Status NotInherited(const SessionName& name, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(kSessionVariable, "=", FormatSessionName(name),
                   " names a session that this process did not inherit: ", why, "; ", kWayOut));
}

// Reads the credentials under `fd`, if they are those of the session that `name` names.
absl::StatusOr<SessionCredentials> ReadNamed(const SessionName& name, int fd) {
  BERTH_ASSIGN_OR_RETURN(SessionCredentials session_credentials, ReadSessionCredentials(fd));
  if (name.session && session_credentials.session != name.session) {
    return absl::InvalidArgumentError(
        absl::StrCat("fd ", fd, " has the credentials of session ", session_credentials.session.value()));
  }
  return session_credentials;
}

// Handles the kernel's refusal to read the fds of the process with the owner process's PID.
absl::Status OwnerUnreadable(const SessionName& name, int error) {
  struct stat process;
  const bool seen = ::stat(absl::StrCat("/proc/", name.opener).c_str(), &process) == 0;
  const std::string owner = seen ? absl::StrCat(" of user ", process.st_uid) : "";
  const std::string why =
      absl::StrCat("fd ", name.session_credentials, " does not have its credentials, and that of process ", name.opener,
                   owner, " cannot be read as user ", ::geteuid(), ": ", OsError("open", error).message());
  // The kernel also refuses to read the fds of this user's own process while that process exits. The daemon knows
  // whether the session lives.
  if (::kill(name.opener, 0) == 0 || errno == ESRCH) return absl::NotFoundError(why);
  // A later process of another user may have the PID by now.
  BERTH_ASSIGN_OR_RETURN(const std::optional<uint64_t> start, StartTicksOf(name.opener));
  if (start.has_value() && *start != name.opener_start) return absl::NotFoundError(why);
  return NotInherited(name, why);
}

// Reads the credentials from the session's owner process.
absl::StatusOr<SessionCredentials> ReadFromOwner(const SessionName& name) {
  const std::string path = absl::StrCat("/proc/", name.opener, "/fd/", name.session_credentials);
  // The fd may have been reused for another file, and the open of a device or a pipe may have side effects.
  std::array<char, 64> target = {};
  if (::readlink(path.c_str(), target.data(), target.size() - 1) < 0) {
    if (errno == EACCES || errno == EPERM) return OwnerUnreadable(name, errno);
    return absl::NotFoundError(OsError(path, errno).message());
  }
  if (!absl::StartsWith(target.data(), kCredentialsTarget)) {
    return absl::NotFoundError(absl::StrCat(path, " does not have session credentials"));
  }
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) {
    if (errno == EACCES || errno == EPERM) return OwnerUnreadable(name, errno);
    const absl::Status failed = OsError(path, errno);
    return absl::IsResourceExhausted(failed) ? failed : absl::NotFoundError(failed.message());
  }
  absl::StatusOr<SessionCredentials> session_credentials = ReadNamed(name, file.get());
  if (!session_credentials.ok()) return absl::NotFoundError(absl::StrCat(path, " belongs to another session"));
  return session_credentials;
}

AttachLimits LimitsOf(const SessionOptions& options) {
  return {.timeout = options.timeout, .on_silence = options.on_silence};
}

// Joins the session of `session_credentials` at the daemon in the folder that `options`, the environment or the
// credentials name.
absl::StatusOr<SessionEntry> Join(SessionCredentials session_credentials, const SessionOptions& options) {
  // The credentials contain the folder as the opener saw it; a container may mount it elsewhere.
  std::string folder = options.folder;
  if (folder.empty()) folder = FolderFromEnvironment();
  if (folder.empty()) folder = session_credentials.folder;
  folder = Absolute(folder);
  BERTH_RETURN_IF_ERROR(CheckMayConnect(SocketPath(folder, options)));
  BERTH_ASSIGN_OR_RETURN(JoinedChannel joined,
                         JoinSession(AttachPath(folder, options.admin), session_credentials, LimitsOf(options)));
  return SessionEntry{
      .folder = std::move(folder), .session_credentials = std::move(session_credentials), .joined = std::move(joined)};
}

absl::StatusOr<SessionEntry> Open(const SessionOptions& options) {
  std::string folder = Absolute(options.folder.empty() ? DefaultFolder() : options.folder);
  BERTH_RETURN_IF_ERROR(CheckMayConnect(SocketPath(folder, options)));
  const std::string attach = AttachPath(folder, options.admin);
  BERTH_ASSIGN_OR_RETURN(OpenedSession opened, OpenSession(attach, options.label, LimitsOf(options)));
  BERTH_ASSIGN_OR_RETURN(JoinedChannel joined, JoinSession(attach, opened.session_credentials, LimitsOf(options)));
  return SessionEntry{.folder = std::move(folder),
                      .session_credentials = std::move(opened.session_credentials),
                      .lifeline = std::move(opened.lifeline),
                      .credentials_fd = std::move(opened.credentials_fd),
                      .joined = std::move(joined)};
}

constexpr char kSystemFolder[] = "/run/berth";

std::string Variable(const char* name) {
  const char* value = ::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string SocketPath(const std::string& folder, const SessionOptions& options) {
  if (options.observer && !options.admin) return absl::StrCat(folder, "/observer.sock");
  return absl::StrCat(folder, options.admin ? "/admin.sock" : "/berthd.sock");
}

bool HasInherited(const SessionName& name) { return ReadNamed(name, name.session_credentials).ok(); }

absl::StatusOr<SessionCredentials> FindSessionCredentials(const SessionName& name) {
  absl::StatusOr<SessionCredentials> own = ReadNamed(name, name.session_credentials);
  if (own.ok()) return own;
  // A name written by an earlier version has no session ID, so its session cannot be verified.
  if (!name.session) return NotInherited(name, own.status().message());
  if (name.pid_namespace != PidNamespace()) {
    return NotInherited(name, absl::StrCat(own.status().message(), ", and process ", name.opener,
                                           " is in another PID namespace, e.g. in another container"));
  }
  return ReadFromOwner(name);
}

absl::StatusOr<SessionEntry> EnterSession(const SessionOptions& options) {
  std::optional<SessionName> name;
  if (!options.always_new) {
    BERTH_ASSIGN_OR_RETURN(name, SessionNameFromEnvironment());
  }
  if (!name.has_value()) return Open(options);
  absl::StatusOr<SessionCredentials> session_credentials = FindSessionCredentials(*name);
  if (session_credentials.ok()) {
    absl::StatusOr<SessionEntry> joined = Join(*std::move(session_credentials), options);
    if (!IsRefusal(joined.status(), Reason::kSessionEnded)) return joined;
    return Open(options);
  }
  if (!absl::IsNotFound(session_credentials.status())) return session_credentials.status();
  BERTH_ASSIGN_OR_RETURN(SessionEntry entry, Open(options));
  entry.missed =
      MissedSession{.session = name->session, .why = NotInherited(*name, session_credentials.status().message())};
  return entry;
}

// ---- environment.h -------------------------------------------------------------------------------------------

std::string FolderFromEnvironment() { return Variable(kFolderVariable); }

std::string DefaultFolder() {
  if (std::string folder = FolderFromEnvironment(); !folder.empty()) return folder;
  const std::string runtime = Variable("XDG_RUNTIME_DIR");
  const bool system = ::access(absl::StrCat(kSystemFolder, "/berthd.sock").c_str(), F_OK) == 0;
  return system || runtime.empty() ? kSystemFolder : absl::StrCat(runtime, "/berth");
}

std::string Absolute(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(folder, error);
  return error ? folder : absolute.string();
}

absl::StatusOr<SessionName> ParseSessionName(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  SessionName name;
  uint64_t session = 0;
  const bool earlier = parts.size() == 2 || parts.size() == 3;
  bool valid = (earlier || parts.size() == 6) && absl::SimpleAtoi(parts[0], &name.lifeline) && name.lifeline >= 0 &&
               absl::SimpleAtoi(parts[1], &name.session_credentials) && name.session_credentials >= 0;
  if (valid && !earlier) {
    valid = absl::SimpleAtoi(parts[2], &name.opener) && name.opener > 0 &&
            absl::SimpleAtoi(parts[3], &name.opener_start) &&
            absl::SimpleAtoi(parts[4], &name.pid_namespace) && absl::SimpleAtoi(parts[5], &session) &&
            session != 0;
  }
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat(
        kSessionVariable, "=\"", text.substr(0, 128),
        "\" is not <lifeline fd>,<credentials fd>,<pid>,<start time>,<PID namespace>,<session>: unset it"));
  }
  name.session = SessionId(session);
  return name;
}

std::string FormatSessionName(const SessionName& name) {
  const std::string fds = absl::StrCat(name.lifeline, ",", name.session_credentials);
  if (!name.session) return fds;
  return absl::StrCat(fds, ",", name.opener, ",", name.opener_start, ",", name.pid_namespace, ",",
                      name.session.value());
}

absl::StatusOr<std::optional<SessionName>> SessionNameFromEnvironment() {
  const std::string text = Variable(kSessionVariable);
  if (text.empty()) return std::nullopt;
  BERTH_ASSIGN_OR_RETURN(SessionName name, ParseSessionName(text));
  return name;
}

uint64_t PidNamespace() {
  struct stat file = {};
  return ::stat("/proc/self/ns/pid", &file) == 0 ? file.st_ino : 0;
}

}  // namespace berth::internal
