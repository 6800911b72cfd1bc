// Intercepts the C library's calls by which a process of the daemon communicates, and by which it requests memory, fds
// and files from the kernel (points.h). Loaded by LD_PRELOAD.
//
// Libraries also make some of these calls themselves (open, write, mmap, epoll_ctl); of these only the program's own
// calls count. In an optimised build gRPC is part of the program (docs/design/0021). SQLite, which is also part of it,
// uses other names for them (open64).

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <new>

#include "tests/fault/points.h"

namespace {

using berth::testing::PointMode;
using berth::testing::Points;

Points* MapPoints() {
  const char* const path = getenv(berth::testing::kPointsVariable);
  const int fd = path == nullptr ? -1 : static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  if (fd < 0) return nullptr;
  void* const memory = ::mmap(nullptr, sizeof(Points), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<Points*>(memory);
}

// Whether this process is the target, by its first thread's name: other threads have other names.
bool IsMeant(const Points& points) {
  char name[16] = {};
  const int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/proc/self/comm", O_RDONLY | O_CLOEXEC));
  const ssize_t size = ::read(fd, name, sizeof(name));
  ::close(fd);
  if (size <= 0) return false;
  name[size - 1] = '\0';
  return strcmp(name, points.process) == 0;
}

// Returns whether the call must fail.
bool Pass(PointMode mode) {
  static Points* const points = MapPoints();
  if (points == nullptr) return false;
  const bool stops = points->mode == PointMode::kStop && mode == PointMode::kDie;
  const PointMode counts = mode == PointMode::kFailNew ? PointMode::kCountNew : PointMode::kCount;
  if (points->mode != mode && !stops && (points->mode != counts || mode == PointMode::kFailStarts)) return false;
  if (!IsMeant(*points)) return false;
  const bool is_target = points->passed.fetch_add(1) + 1 == points->target;
  if (mode == PointMode::kFailStarts) return points->mode == mode;
  if (!is_target || points->mode == counts) return false;
  if (mode == PointMode::kDie) ::kill(::getpid(), stops ? SIGSTOP : SIGKILL);
  return true;
}

bool Fails(int error) {
  if (!Pass(PointMode::kFail)) return false;
  errno = error;
  return true;
}

// Whether a process start must fail.
bool StartFails() { return Pass(PointMode::kFailStarts) || Pass(PointMode::kFail); }

// Whether the program itself makes the call, and no library.
bool IsProgram(const void* caller) {
  Dl_info program;
  Dl_info library;
  return ::dladdr(reinterpret_cast<const void*>(::getauxval(AT_PHDR)), &program) != 0 &&
         ::dladdr(caller, &library) != 0 && program.dli_fbase == library.dli_fbase;
}
#define BERTH_FAILS_HERE(error) (IsProgram(__builtin_return_address(0)) && Fails(error))

// Whether writing to the fd needs space: a log or memory, but no wake-up and no message.
bool TakesCapacity(int fd) {
  struct stat info;
  return fd > STDERR_FILENO && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// Like libstdc++'s own, on which all its other variants are based.
void* operator new(size_t size) {
  while (true) {
    void* const memory = Pass(PointMode::kFailNew) ? nullptr : ::malloc(size == 0 ? 1 : size);
    if (memory != nullptr) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

extern "C" {

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static auto* const next = Next<ssize_t(int, const msghdr*, int)>("sendmsg");
  Pass(PointMode::kDie);
  if (Fails(ENOBUFS)) return -1;
  const ssize_t sent = next(fd, message, flags);
  const int error = errno;
  Pass(PointMode::kDie);
  errno = error;
  return sent;
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto* const next = Next<ssize_t(int, msghdr*, int)>("recvmsg");
  const ssize_t got = next(fd, message, flags);
  if (got <= 0) return got;
  Pass(PointMode::kDie);
  // Simulates that there was no space for the fds.
  if (message->msg_controllen > 0 && Fails(0)) {
    for (cmsghdr* head = CMSG_FIRSTHDR(message); head != nullptr; head = CMSG_NXTHDR(message, head)) {
      if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) ::close(reinterpret_cast<int*>(CMSG_DATA(head))[i]);
    }
    message->msg_controllen = 0;
    message->msg_flags |= MSG_CTRUNC;
  }
  return got;
}

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* argv, char* const* environment) {
  static auto* const next = Next<decltype(posix_spawn)>("posix_spawn");
  return StartFails() ? EAGAIN : next(pid, path, actions, attributes, argv, environment);
}

pid_t fork() {
  static auto* const next = Next<pid_t()>("fork");
  if (!StartFails()) return next();
  errno = EAGAIN;
  return -1;
}

int socketpair(int domain, int type, int protocol, int* sockets) noexcept {
  static auto* const next = Next<int(int, int, int, int*)>("socketpair");
  return Fails(EMFILE) ? -1 : next(domain, type, protocol, sockets);
}

int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  static auto* const next = Next<int(int, sockaddr*, socklen_t*, int)>("accept4");
  return Fails(EMFILE) ? -1 : next(fd, address, size, flags);
}

int memfd_create(const char* name, unsigned flags) noexcept {
  static auto* const next = Next<int(const char*, unsigned)>("memfd_create");
  return Fails(EMFILE) ? -1 : next(name, flags);
}

int ftruncate(int fd, off_t size) noexcept {
  static auto* const next = Next<int(int, off_t)>("ftruncate");
  return Fails(ENOSPC) ? -1 : next(fd, size);
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
  static auto* const next = Next<int(int, int, off_t, off_t)>("fallocate");
  return Fails(ENOSPC) ? -1 : next(fd, mode, offset, size);
}

int posix_fallocate(int fd, off_t offset, off_t size) {
  static auto* const next = Next<int(int, off_t, off_t)>("posix_fallocate");
  return Fails(ENOSPC) ? ENOSPC : next(fd, offset, size);
}

int open(const char* path, int flags, ...) {
  static auto* const next = Next<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return BERTH_FAILS_HERE(EMFILE) ? -1 : next(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  static auto* const next = Next<int(int, const char*, int, ...)>("openat");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return BERTH_FAILS_HERE(EMFILE) ? -1 : next(folder, path, flags, mode);
}

int rename(const char* from, const char* to) noexcept {
  static auto* const next = Next<int(const char*, const char*)>("rename");
  return BERTH_FAILS_HERE(ENOSPC) ? -1 : next(from, to);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  return TakesCapacity(fd) && BERTH_FAILS_HERE(ENOSPC) ? -1 : next(fd, bytes, size);
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return TakesCapacity(fd) && BERTH_FAILS_HERE(ENOSPC) ? -1 : next(fd, bytes, size, offset);
}

// Only for shared mappings: operator new covers the allocation of memory itself.
void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  static auto* const next = Next<void*(void*, size_t, int, int, int, off_t)>("mmap");
  const bool shared = fd >= 0 && (flags & MAP_SHARED) != 0;
  return shared && BERTH_FAILS_HERE(ENOMEM) ? MAP_FAILED : next(address, size, protection, flags, fd, offset);
}

void* mremap(void* address, size_t size, size_t wanted, int flags, ...) noexcept {
  static auto* const next = Next<void*(void*, size_t, size_t, int, ...)>("mremap");
  va_list arguments;
  va_start(arguments, flags);
  void* const to = va_arg(arguments, void*);
  va_end(arguments);
  return BERTH_FAILS_HERE(ENOMEM) ? MAP_FAILED : next(address, size, wanted, flags, to);
}

int epoll_ctl(int epoll, int what, int fd, epoll_event* event) noexcept {
  static auto* const next = Next<int(int, int, int, epoll_event*)>("epoll_ctl");
  return what == EPOLL_CTL_ADD && BERTH_FAILS_HERE(ENOSPC) ? -1 : next(epoll, what, fd, event);
}

long syscall(long number, ...) noexcept {
  using Function = long(long, ...);
  // Code that waits for the initialisation of such a variable ends up here: so it is initialised before anything runs.
  static std::atomic<Function*> next = nullptr;
  if (next == nullptr) next = Next<Function>("syscall");
  va_list arguments;
  va_start(arguments, number);
  long words[6];
  for (long& word : words) word = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_pidfd_open && BERTH_FAILS_HERE(EMFILE)) return -1;
  return next.load()(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

int fcntl64(int fd, int command, ...) {
  static auto* const next = Next<int(int, int, ...)>("fcntl64");
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (command == F_DUPFD_CLOEXEC && Fails(EMFILE)) return -1;
  return next(fd, command, argument);
}

int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl64(fd, command, argument);
}

}  // extern "C"
