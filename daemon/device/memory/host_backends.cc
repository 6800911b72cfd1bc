// Memory of the host, by fds and by names.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/os/fd_passing.h"
#include "common/os/memfd.h"
#include "common/os/named_memory.h"
#include "common/os/os_error.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "daemon/device/memory/host_backend.h"
#include "daemon/device/memory/named_backend.h"
#include "daemon/device/memory/named_memory_server.h"

namespace berth {
namespace {

// Limit of connections accepted before waiting connections get their turn.
constexpr int kAcceptsPerTurn = 16;
// Pause before the next try to accept a connection without a free fd.
constexpr absl::Duration kNoFdPause = absl::Milliseconds(10);

std::string KeyOf(const Secret& key) {
  return std::string(reinterpret_cast<const char*>(key.bits.data()), key.bits.size());
}

absl::Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0711) < 0 && errno != EEXIST) return OsError(absl::StrCat("mkdir ", path), errno);
  // All users may traverse this folder, whatever the umask; the run folder restricts access to it.
  if (::chmod(path.c_str(), 0711) < 0) return OsError(absl::StrCat("chmod ", path), errno);
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Listen(const std::string& path) {
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path)) return OsError(absl::StrCat("bind ", path), ENAMETOOLONG);
  path.copy(address.sun_path, path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return OsError("socket", errno);
  // A worker that was killed has left its socket.
  ::unlink(path.c_str());
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
    return OsError(absl::StrCat("bind ", path), errno);
  }
  if (::chmod(path.c_str(), 0666) < 0) return OsError(absl::StrCat("chmod ", path), errno);
  // A kernel that cannot refuse fds drops them when the handle is read.
  RefuseFds(socket.get()).IgnoreError();
  if (::listen(socket.get(), SOMAXCONN) < 0) return OsError(absl::StrCat("listen ", path), errno);
  return socket;
}

}  // namespace

// ---- host_backend.h ------------------------------------------------------------------------------------------

HostBackend::HostBackend(std::string uuid, Bytes total) : total_(total), records_(std::move(uuid)) {}

absl::StatusOr<MemoryBlock> HostBackend::Allocate(Bytes bytes, absl::string_view tag) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity()));
  if (bytes > total_) return RefuseMoreThan(device(), bytes, total_);
  absl::StatusOr<UniqueFd> fd = CreateMemfd("berth-block", bytes.count());
  if (!fd.ok()) return ExplainSystemError(fd.status(), device(), bytes);
  BERTH_RETURN_IF_ERROR(SealMemfd(fd->get()));
  MemoryBlock block = records_.Add(bytes, tag);
  block.fd = *std::move(fd);
  return block;
}

absl::Status HostBackend::Deallocate(MemoryBlock& block) { return HandOver(block).status(); }

absl::StatusOr<UniqueFd> HostBackend::HandOver(MemoryBlock& block) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  records_.Remove(block);
  return std::move(block.fd);
}

absl::StatusOr<MemoryBlock> HostBackend::Adopt(UniqueFd fd, absl::string_view tag) {
  MemoryBlock block = records_.Add(Bytes(0), tag);
  block.fd = std::move(fd);
  return block;
}

absl::Status HostBackend::Fill(const MemoryBlock& block, uint8_t value) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  // The memfd's size is also right for an adopted block.
  struct stat info;
  if (::fstat(block.fd.get(), &info) < 0) return OsError("fstat(block)", errno);
  if (!S_ISREG(info.st_mode) || info.st_size == 0) return absl::OkStatus();
  void* const at = ::mmap(nullptr, info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, block.fd.get(), 0);
  if (at == MAP_FAILED) return OsError("mmap(block)", errno);
  memset(at, value, info.st_size);
  ::munmap(at, info.st_size);
  return absl::OkStatus();
}

// ---- named_backend.h -----------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<NamedBackend>> NamedBackend::Open(std::string folder, uint32_t ordinal,
                                                                 std::string uuid, Bytes total) {
  BERTH_ASSIGN_OR_RETURN(std::unique_ptr<NamedMemoryServer> server,
                         NamedMemoryServer::Start(std::move(folder), ordinal));
  return std::unique_ptr<NamedBackend>(new NamedBackend(std::move(server), std::move(uuid), total));
}

NamedBackend::NamedBackend(std::unique_ptr<NamedMemoryServer> server, std::string uuid, Bytes total)
    : server_(std::move(server)), total_(total), records_(std::move(uuid)) {}

absl::StatusOr<MemoryBlock> NamedBackend::Allocate(Bytes bytes, absl::string_view tag) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity()));
  if (bytes > total_) return RefuseMoreThan(device(), bytes, total_);
  const absl::StatusOr<IpcHandle> handle = server_->Create(bytes);
  if (!handle.ok()) return ExplainSystemError(handle.status(), device(), bytes);
  MemoryBlock block = records_.Add(bytes, tag);
  block.handle = handles_[block.generation] = *handle;
  return block;
}

absl::Status NamedBackend::Deallocate(MemoryBlock& block) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  server_->Remove(handles_.at(block.generation));
  handles_.erase(block.generation);
  records_.Remove(block);
  block.handle.reset();
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> NamedBackend::HandOver(MemoryBlock& block) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  return RefuseCapability(device(), "fd of memory with an IPC handle");
}

absl::StatusOr<MemoryBlock> NamedBackend::Adopt(UniqueFd, absl::string_view) {
  return RefuseCapability(device(), "fd of memory with an IPC handle");
}

absl::Status NamedBackend::Fill(const MemoryBlock& block, uint8_t value) {
  BERTH_ASSIGN_OR_RETURN(const BlockRecords::Record record, records_.Find(block));
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, server_->Open(handles_.at(block.generation)));
  const size_t size = record.bytes.count();
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return OsError("mmap(block)", errno);
  memset(at, value, size);
  ::munmap(at, size);
  return absl::OkStatus();
}

// ---- named_memory_server.h -----------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<NamedMemoryServer>> NamedMemoryServer::Start(std::string folder, uint32_t device) {
  BERTH_RETURN_IF_ERROR(MakeFolder(NamedMemoryFolder(folder)));
  BERTH_ASSIGN_OR_RETURN(UniqueFd listener, Listen(NamedMemorySocket(folder, device)));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return OsError("eventfd", errno);
  std::unique_ptr<NamedMemoryServer> server(
      new NamedMemoryServer(std::move(folder), device, std::move(listener), std::move(wake)));
  BERTH_ASSIGN_OR_RETURN(server->thread_, Thread::Start("named memory", [raw = server.get()] { raw->Serve(); }));
  return server;
}

NamedMemoryServer::NamedMemoryServer(std::string folder, uint32_t device, UniqueFd listener, UniqueFd wake)
    : folder_(std::move(folder)), device_(device), listener_(std::move(listener)), wake_(std::move(wake)) {}

NamedMemoryServer::~NamedMemoryServer() {
  ::unlink(NamedMemorySocket(folder_, device_).c_str());
  // There is no thread if Start() failed to create it.
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t woken = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

absl::StatusOr<IpcHandle> NamedMemoryServer::Create(Bytes bytes) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("berth-named", bytes.count()));
  BERTH_RETURN_IF_ERROR(SealMemfd(fd.get()));
  const Secret key = RandomSecret();
  MutexLock lock(&mu_);
  memory_[KeyOf(key)] = std::move(fd);
  return MakeNamedHandle(device_, key);
}

absl::StatusOr<UniqueFd> NamedMemoryServer::Open(const IpcHandle& handle) const {
  BERTH_ASSIGN_OR_RETURN(const NamedHandle named, ReadNamedHandle(handle));
  MutexLock lock(&mu_);
  const auto memory = memory_.find(KeyOf(named.key));
  if (named.device != device_ || memory == memory_.end()) return absl::NotFoundError("named memory: removed");
  UniqueFd copy(::fcntl(memory->second.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return OsError("fcntl(F_DUPFD_CLOEXEC)", errno);
  return copy;
}

void NamedMemoryServer::Remove(const IpcHandle& handle) {
  const absl::StatusOr<NamedHandle> named = ReadNamedHandle(handle);
  if (!named.ok()) return;
  UniqueFd last;
  MutexLock lock(&mu_);
  const auto memory = memory_.find(KeyOf(named->key));
  if (memory == memory_.end()) return;
  last = std::move(memory->second);
  memory_.erase(memory);
}

void NamedMemoryServer::Serve() {
  std::vector<pollfd> polled;
  while (true) {
    polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
              {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      polled.push_back({.fd = connection.fd.get(), .events = POLLIN, .revents = 0});
    }
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    std::vector<Connection> left;
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (polled[i + 2].revents == 0 || !Answer(connections_[i].fd.get())) left.push_back(std::move(connections_[i]));
    }
    connections_ = std::move(left);
    if (polled[1].revents != 0) Accept();
  }
}

void NamedMemoryServer::Accept() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EMFILE || errno == ENFILE)) {
      // Dropping a waiting connection frees an fd. Without one, only a freed block can free an fd.
      if (connections_.empty()) return absl::SleepFor(kNoFdPause);
      DropOne();
      continue;
    }
    if (!socket) return;
    ucred peer = {};
    socklen_t size = sizeof(peer);
    ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
    if (Answer(socket.get())) continue;
    if (connections_.size() >= kConnections) DropOne();
    connections_.push_back({.fd = std::move(socket), .uid = peer.uid});
  }
}

void NamedMemoryServer::DropOne() {
  std::map<uid_t, size_t> counts;
  for (const Connection& connection : connections_) ++counts[connection.uid];
  const uid_t most = std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
                       return a.second < b.second;
                     })->first;
  connections_.erase(std::find_if(connections_.begin(), connections_.end(),
                                  [&](const Connection& connection) { return connection.uid == most; }));
}

bool NamedMemoryServer::Answer(int socket) const {
  IpcHandle handle;
  const ssize_t got = ::recv(socket, &handle, sizeof(handle), MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got != static_cast<ssize_t>(sizeof(handle))) return true;
  const absl::StatusOr<UniqueFd> fd = Open(handle);
  // Without a free fd the connection is closed, and the client retries.
  if (absl::IsResourceExhausted(fd.status())) return true;
  const NamedAnswer answer = {.found = fd.ok() ? 1u : 0u};
  const int sent = fd.ok() ? fd->get() : -1;
  SendStruct(socket, answer, fd.ok() ? std::span<const int>(&sent, 1) : std::span<const int>()).IgnoreError();
  return true;
}

}  // namespace berth
