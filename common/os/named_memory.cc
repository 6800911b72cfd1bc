#include "common/os/named_memory.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <utility>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/os/fd_passing.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth {
namespace {

// Layout of the 64 bytes.
struct Layout {
  static constexpr uint64_t kMagic = 0x646d656d68747262;  // "brthmemd"
  uint64_t magic = kMagic;
  uint32_t device = 0;
  uint32_t padding = 0;
  Secret key;
  std::array<uint8_t, 32> unused = {};
};
static_assert(sizeof(Layout) == sizeof(IpcHandle));

// Total time for retries. A busy server drops some connections before it reads the handle; a stopped worker answers no
// client.
constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr absl::Duration kPause = absl::Milliseconds(1);

std::string PrefixOf(uint32_t device) { return absl::StrCat(device, "-"); }

void RemovePrefixed(const std::string& path, absl::string_view prefix) {
  const std::unique_ptr<DIR, int (*)(DIR*)> names(::opendir(path.c_str()), &::closedir);
  if (names == nullptr) return;
  while (const dirent* const name = ::readdir(names.get())) {
    if (absl::StartsWith(name->d_name, prefix)) ::unlinkat(::dirfd(names.get()), name->d_name, 0);
  }
}

absl::Status NotThere() { return absl::NotFoundError("named memory: the context worker has removed it or has ended"); }

absl::StatusOr<UniqueFd> Connect(const std::string& path) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return OsError("socket", errno);
  const timeval patience = absl::ToTimeval(kPatience);
  for (const int which : {SO_SNDTIMEO, SO_RCVTIMEO}) {
    if (::setsockopt(socket.get(), SOL_SOCKET, which, &patience, sizeof(patience)) < 0) {
      return OsError("setsockopt", errno);
    }
  }
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path)) return OsError(absl::StrCat("connect ", path), ENAMETOOLONG);
  path.copy(address.sun_path, path.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return socket;
  if (errno == ENOENT || errno == ECONNREFUSED) return NotThere();
  return OsError(absl::StrCat("connect ", path), errno);
}

// Makes one attempt. Errors: kUnavailable if the server dropped the connection, or does not answer.
absl::StatusOr<UniqueFd> Ask(const std::string& path, const IpcHandle& handle) {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd socket, Connect(path));
  BERTH_RETURN_IF_ERROR(SendStruct(socket.get(), handle));
  absl::StatusOr<Message> message = ReceiveMessage(socket.get());
  if (IsEndOfStream(message.status())) return absl::UnavailableError("the connection was dropped");
  BERTH_RETURN_IF_ERROR(message.status());
  NamedAnswer answer;
  if (message->bytes.size() != sizeof(answer)) {
    return absl::InternalError("named memory: the worker's answer is malformed");
  }
  memcpy(&answer, message->bytes.data(), sizeof(answer));
  if (answer.found == 0) return NotThere();
  if (message->fds.size() != 1) return absl::InternalError("named memory: the worker's answer has no fd");
  return std::move(message->fds[0]);
}

}  // namespace

IpcHandle MakeNamedHandle(uint32_t device, const Secret& key) {
  const Layout layout = {.device = device, .key = key};
  IpcHandle handle;
  memcpy(handle.bytes.data(), &layout, sizeof(layout));
  return handle;
}

absl::StatusOr<NamedHandle> ReadNamedHandle(const IpcHandle& handle) {
  Layout layout;
  memcpy(&layout, handle.bytes.data(), sizeof(layout));
  if (layout.magic != Layout::kMagic) {
    return Refuse(Reason::kInvalidField, "{field} is {value}; expected {limit}",
                  {{"field", "ipc_handle"}, {"value", "<IPC handle>"}, {"limit", "a handle of host memory"}});
  }
  return NamedHandle{.device = layout.device, .key = layout.key};
}

std::string NamedMemoryFolder(const std::string& folder) { return folder + "/ipc"; }

std::string NamedMemorySocket(const std::string& folder, uint32_t device) {
  return absl::StrCat(NamedMemoryFolder(folder), "/", PrefixOf(device), "open");
}

absl::StatusOr<UniqueFd> OpenNamedMemory(const std::string& folder, const IpcHandle& handle) {
  BERTH_ASSIGN_OR_RETURN(const NamedHandle named, ReadNamedHandle(handle));
  const std::string path = NamedMemorySocket(folder, named.device);
  const absl::Time deadline = SteadyNow() + kPatience;
  while (true) {
    absl::StatusOr<UniqueFd> fd = Ask(path, handle);
    if (!absl::IsUnavailable(fd.status())) return fd;
    if (SteadyNow() > deadline) {
      return absl::UnavailableError(absl::StrCat("named memory: the context worker does not answer within ",
                                                 absl::FormatDuration(kPatience), "; try again"));
    }
    absl::SleepFor(kPause);
  }
}

void RemoveNamedMemory(const std::string& folder, uint32_t device) {
  RemovePrefixed(NamedMemoryFolder(folder), PrefixOf(device));
}

void RemoveAllNamedMemory(const std::string& folder) {
  RemovePrefixed(NamedMemoryFolder(folder), "");
  ::rmdir(NamedMemoryFolder(folder).c_str());
}

}  // namespace berth
