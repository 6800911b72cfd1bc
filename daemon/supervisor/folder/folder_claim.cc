#include "daemon/supervisor/folder/folder_claim.h"

#include <errno.h>
#include <limits.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/os/os_error.h"
#include "common/os/process_start.h"
#include "common/secret.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "daemon/supervisor/supervisor_log.h"

namespace berth {
namespace {

// Time limit for the kernel's answer.
constexpr timeval kPatience = {.tv_sec = 5, .tv_usec = 0};
constexpr size_t kAnswerBytes = size_t{64} << 10;
constexpr size_t kDigestBytes = 16;

// A bound socket.
struct BoundName {
  absl::string_view name;
  uint32_t uid = 0;
  uint64_t inode = 0;
};

// Maps all spellings of a path to one, even if its last part does not exist.
absl::StatusOr<std::string> Resolve(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return absl::InvalidArgumentError(absl::StrCat(path, " is not absolute"));
  const std::string parent(path.substr(0, slash + 1));
  const std::unique_ptr<char, decltype(&::free)> resolved(::realpath(parent.c_str(), nullptr), &::free);
  if (resolved == nullptr) return OsError(absl::StrCat("resolve ", parent), errno);
  return absl::StrCat(resolved.get(), "/", path.substr(slash + 1));
}

// Returns the common prefix of the names of all claims on `path`, including the leading zero byte.
absl::StatusOr<std::string> PrefixOf(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const std::string resolved, Resolve(path));
  BERTH_ASSIGN_OR_RETURN(const uint64_t pids, ReadPidNamespace());
  const std::string digest = ToHex(Sha256Of(resolved)).substr(0, kDigestBytes);
  return absl::StrCat(absl::string_view("\0", 1), "berth/", pids, "/", digest, "/");
}

BoundName Parse(const nlmsghdr& header) {
  const auto* const message = static_cast<const unix_diag_msg*>(NLMSG_DATA(&header));
  BoundName bound = {.inode = message->udiag_ino};
  // A kernel that does not report the user counts as naming this user.
  bound.uid = ::geteuid();
  const char* at = reinterpret_cast<const char*>(message) + NLMSG_ALIGN(sizeof(*message));
  const char* const end = reinterpret_cast<const char*>(&header) + header.nlmsg_len;
  while (end - at >= static_cast<ptrdiff_t>(sizeof(nlattr))) {
    nlattr attribute;
    memcpy(&attribute, at, sizeof(attribute));
    if (attribute.nla_len < NLA_HDRLEN || attribute.nla_len > end - at) break;
    const absl::string_view content(at + NLA_HDRLEN, attribute.nla_len - NLA_HDRLEN);
    if (attribute.nla_type == UNIX_DIAG_NAME) bound.name = content;
    if (attribute.nla_type == UNIX_DIAG_UID && content.size() == sizeof(bound.uid)) {
      memcpy(&bound.uid, content.data(), sizeof(bound.uid));
    }
    at += NLA_ALIGN(attribute.nla_len);
  }
  return bound;
}

// Lack of a resource may pass; a kernel that does not list sockets never will.
absl::Status Unlisted(absl::string_view what, int error) {
  const absl::Status why = OsError(what, error);
  return absl::IsResourceExhausted(why) ? why : absl::UnavailableError(why.message());
}

// Visits the Unix sockets of this network namespace that are neither listening nor connected.
absl::Status ForEachBound(absl::FunctionRef<void(const BoundName&)> visit) {
  constexpr uint32_t kUnconnected = 1 << 7;
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } ask = {.header = {.nlmsg_len = sizeof(ask),
                      .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                      .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
                      .nlmsg_seq = 1,
                      .nlmsg_pid = 0},
           .request = {.sdiag_family = AF_UNIX,
                       .sdiag_protocol = 0,
                       .pad = 0,
                       .udiag_states = kUnconnected,
                       .udiag_ino = 0,
                       .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID,
                       .udiag_cookie = {UINT32_MAX, UINT32_MAX}}};
  const UniqueFd kernel(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!kernel || ::setsockopt(kernel.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience)) < 0 ||
      ::send(kernel.get(), &ask, sizeof(ask), 0) < 0) {
    return Unlisted("ask the kernel for its Unix sockets", errno);
  }
  std::vector<uint64_t> buffer(kAnswerBytes / sizeof(uint64_t));
  while (true) {
    const ssize_t got = ::recv(kernel.get(), buffer.data(), kAnswerBytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Unlisted("read the kernel's Unix sockets", errno);
    auto left = static_cast<uint32_t>(got);
    for (const auto* header = reinterpret_cast<const nlmsghdr*>(buffer.data()); NLMSG_OK(header, left);
         header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE) return absl::OkStatus();
      if (header->nlmsg_type == NLMSG_ERROR) {
        const int error = -static_cast<const nlmsgerr*>(NLMSG_DATA(header))->error;
        return Unlisted("list Unix sockets", error);
      }
      visit(Parse(*header));
    }
  }
}

// Returns the end of the name, after `prefix`, that another process of this user has bound; nullopt if there is none.
// `own` is the inode of the caller's own socket, `what` names the claimed thing for the log.
absl::StatusOr<std::optional<std::string>> FindOther(const std::string& what, const std::string& prefix, uint64_t own) {
  std::optional<std::string> other;
  std::optional<uint32_t> other_user;
  BERTH_RETURN_IF_ERROR(ForEachBound([&](const BoundName& bound) {
    if (!absl::StartsWith(bound.name, prefix) || bound.inode == own) return;
    if (bound.uid == ::geteuid()) {
      other = std::string(bound.name.substr(prefix.size()));
    } else {
      other_user = bound.uid;
    }
  }));
  if (other_user.has_value()) {
    Log("ignoring a socket name that uid %u bound to claim %s: only names of uid %u count", *other_user, what.c_str(),
        ::geteuid());
  }
  return other;
}

absl::Status CheckOthers(const std::string& path, const std::string& prefix, uint64_t own) {
  BERTH_ASSIGN_OR_RETURN(const std::optional<std::string> other,
                         FindOther(absl::StrCat("folder ", path), prefix, own));
  if (!other.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("another process of uid ", ::geteuid(), " has claimed folder ", path));
}

// Binds the name that `prefix` and a random number make. The socket never listens: no process can connect or send to
// it.
absl::StatusOr<UniqueFd> Bind(const std::string& what, const std::string& prefix) {
  const std::string name = absl::StrCat(prefix, absl::Hex(RandomId(), absl::kZeroPad16));
  UniqueFd claim(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  if (!claim || ::bind(claim.get(), reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    return OsError(absl::StrCat("claim ", what), errno);
  }
  return claim;
}

absl::StatusOr<uint64_t> InodeOf(const std::string& what, const UniqueFd& claim) {
  struct stat own;
  if (::fstat(claim.get(), &own) < 0) return OsError(absl::StrCat("claim ", what), errno);
  return own.st_ino;
}

// Returns the common prefix of the names of all claims on `node`.
absl::StatusOr<std::string> PrefixOf(uint64_t node) {
  BERTH_ASSIGN_OR_RETURN(const uint64_t pids, ReadPidNamespace());
  return absl::StrCat(absl::string_view("\0", 1), "berth/", pids, "/node-", absl::Hex(node, absl::kZeroPad16), "/");
}

}  // namespace

absl::Status CheckUnclaimed(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const std::string prefix, PrefixOf(path));
  return CheckOthers(path, prefix, /*own=*/0);
}

absl::StatusOr<UniqueFd> ClaimFolder(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const std::string prefix, PrefixOf(path));
  BERTH_ASSIGN_OR_RETURN(UniqueFd claim, Bind(path, prefix));
  BERTH_ASSIGN_OR_RETURN(const uint64_t own, InodeOf(path, claim));
  BERTH_RETURN_IF_ERROR(CheckOthers(path, prefix, own));
  return claim;
}

absl::StatusOr<UniqueFd> ClaimNode(uint64_t node) {
  BERTH_ASSIGN_OR_RETURN(const std::string prefix, PrefixOf(node));
  return Bind(absl::StrCat("node ", node), absl::StrCat(prefix, ::getpid(), "/"));
}

absl::StatusOr<std::optional<std::string>> FindOtherOfNode(uint64_t node, const UniqueFd& claim) {
  const std::string what = absl::StrCat("node ", node);
  BERTH_ASSIGN_OR_RETURN(const std::string prefix, PrefixOf(node));
  BERTH_ASSIGN_OR_RETURN(const uint64_t own, InodeOf(what, claim));
  BERTH_ASSIGN_OR_RETURN(const std::optional<std::string> other, FindOther(what, prefix, own));
  return other.has_value() ? std::optional(other->substr(0, other->find('/'))) : std::nullopt;
}

}  // namespace berth
