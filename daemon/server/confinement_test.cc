#include "daemon/server/confinement.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// Runs `act` in a confined process. Returns its exit code, or minus the signal that ended it.
int Outcome(const std::function<int()>& act, absl::Status (*confine)() = ConfineBroker) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!confine().ok()) ::_exit(99);
    ::_exit(act());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(ConfinementTest, ForbiddenCallEndsBroker) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "sanitizers make such calls themselves";
#endif
  struct Attempt {
    const char* what;
    std::function<int()> act;
  };
  const std::vector<Attempt> attempts = {
      {"execve",
       [] {
         const char* const argv[] = {"true", nullptr};
         ::execv("/bin/true", const_cast<char**>(argv));
         return 0;
       }},
      {"fork", [] { return ::fork() == 0 ? 0 : 0; }},
      {"vfork", [] { return static_cast<int>(::syscall(SYS_vfork)) == 0 ? 0 : 0; }},
      {"ptrace", [] { return static_cast<int>(::ptrace(PTRACE_ATTACH, ::getppid(), nullptr, nullptr)); }},
      {"process_vm_readv",
       [] {
         char byte;
         const iovec local = {&byte, 1};
         return static_cast<int>(::process_vm_readv(::getppid(), &local, 1, &local, 1, 0));
       }},
      {"mount", [] { return ::mount("none", "/mnt", "tmpfs", 0, nullptr); }},
      {"unshare", [] { return ::unshare(CLONE_NEWUSER); }},
      {"bpf", [] { return static_cast<int>(::syscall(SYS_bpf, 0, nullptr, 0)); }},
      {"io_uring_setup", [] { return static_cast<int>(::syscall(SYS_io_uring_setup, 1, nullptr)); }},
      {"setuid", [] { return ::setuid(::getuid()); }},
      {"a call of NVIDIA's driver",
       [] { return ::ioctl(::open("/dev/null", O_RDWR | O_CLOEXEC), static_cast<unsigned long>('F') << 8 | 42); }},
  };
  for (const Attempt& attempt : attempts) EXPECT_EQ(Outcome(attempt.act), -SIGSYS) << attempt.what;
}

TEST(ConfinementTest, InternetSocketIsRejectedUnixSocketIsNot) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "sanitizers keep their calls";
#endif
  for (const int domain : {AF_INET, AF_INET6, AF_NETLINK, AF_PACKET}) {
    EXPECT_EQ(Outcome([&] { return ::socket(domain, SOCK_STREAM, 0) < 0 ? errno : 0; }), EAFNOSUPPORT) << domain;
  }
  EXPECT_EQ(Outcome([] { return ::socket(AF_UNIX, SOCK_STREAM, 0) < 0 ? errno : 0; }), 0);
}

TEST(ConfinementTest, OnlyFewIoctlsAreAllowedOnAnyFd) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "sanitizers keep their calls";
#endif
  const auto ask = [](unsigned long request) {
    return Outcome([request] {
      int sockets[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0) return 98;
      termios anything = {};
      return ::ioctl(sockets[0], request, &anything) < 0 ? errno : 0;
    });
  };
  EXPECT_EQ(ask(FIONREAD), 0);
  EXPECT_EQ(ask(FIONBIO), 0);
  EXPECT_EQ(ask(TCGETS), ENOTTY) << "asked, and no terminal";
  // nvidia-uvm's UVM_INITIALIZE, UVM_REGISTER_GPU and UVM_MAP_EXTERNAL_ALLOCATION have no type.
  for (const unsigned long request : {0x3000'0001ul, 37ul, 33ul}) EXPECT_EQ(ask(request), EPERM) << request;
  // A terminal's input, a copy in a file system, a loop device, and a request that is an allowed one shifted left.
  for (const unsigned long request : {0x5412ul, 0x4004'9409ul, 0x4c00ul, 0x5401ul << 8}) {
    EXPECT_EQ(ask(request), EPERM) << request;
  }
}

TEST(ConfinementTest, ThreadsAndFilesStayAllowed) {
  EXPECT_EQ(Outcome([] {
              int done = 1;
              std::thread([&] { done = 0; }).join();
              return done;
            }),
            0);
  EXPECT_EQ(Outcome([] { return ::open("/proc/self/status", O_RDONLY | O_CLOEXEC) < 0 ? errno : 0; }), 0);
  EXPECT_EQ(Outcome([] { return ::isatty(0) < 0 ? errno : 0; }), 0);
}

TEST(ConfinementTest, OnlySysPtraceCapabilityRemains) {
  EXPECT_EQ(Outcome([] { return ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); }), 1);
  EXPECT_EQ(Outcome([] {
              __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
              __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
              if (::syscall(SYS_capget, &header, data) < 0) return 1;
              const uint32_t left = data[0].permitted | data[0].effective;
              return (left & ~(1u << CAP_SYS_PTRACE)) == 0 && data[1].permitted == 0 ? 0 : 2;
            }),
            0);
}

TEST(ConfinementTest, UnprivilegedDaemonStartsWithoutNoNewPrivs) {
  if (::geteuid() != 0) GTEST_SKIP() << "it takes root to be another user";
  const auto start = [] {
    if (::setresuid(1001, 1001, 1001) < 0) return 1;
    return ConfineDaemon().ok() && ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0 ? 0 : 2;
  };
  EXPECT_EQ(Outcome(start, [] { return absl::OkStatus(); }), 0);
}

TEST(ConfinementTest, UnneededCallsAreRejectedAndProgramsStart) {
#ifdef BERTH_SANITIZED
  GTEST_SKIP() << "sanitizers keep their calls";
#endif
  if (Outcome([] { return ::unshare(CLONE_NEWNS) < 0 ? errno : 0; }, [] { return absl::OkStatus(); }) != 0) {
    GTEST_SKIP() << "without CAP_SYS_ADMIN the kernel wants no_new_privs";
  }
  const auto refused = [](const std::function<int64_t()>& call) {
    return Outcome([&] { return call() < 0 ? errno : 0; }, ConfineDaemon);
  };
  EXPECT_EQ(refused([] { return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); }), EPERM);
  EXPECT_EQ(refused([] { return ::unshare(CLONE_NEWNS); }), EPERM);
  EXPECT_EQ(refused([] { return ::mount("none", "/proc/self/fd", "tmpfs", 0, nullptr); }), EPERM);
  EXPECT_EQ(refused([] { return ::syscall(SYS_io_uring_setup, 1, nullptr); }), EPERM);
  const auto start = [] {
    const char* const argv[] = {"true", nullptr};
    ::execv("/bin/true", const_cast<char**>(argv));
    return errno;
  };
  EXPECT_EQ(Outcome(start, ConfineDaemon), 0);
  EXPECT_EQ(Outcome([] { return ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); }, ConfineDaemon),
            ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
}

}  // namespace
}  // namespace berth
