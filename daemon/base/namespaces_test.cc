#include "daemon/base/namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <ostream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/process.h"
#include "common/os/testing/free_fds.h"
#include "common/os/testing/lone_thread.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace {
// Whether the ioctls of namespaces that Linux has from 6.11 on fail, as on an earlier kernel.
bool earlier_kernel = false;

// Returns whether an earlier kernel has no such request.
bool IsLater(unsigned long request) {
  namespace requests = berth::namespaces_internal;
  return request == requests::kPidfdGetMount || request == requests::kPidfdGetPid ||
         request == requests::kPidfdGetUser || request == requests::kGetMountId || request == requests::kGetId;
}
}  // namespace

// Replaces the C library's function.
extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  const unsigned long argument = va_arg(arguments, unsigned long);
  va_end(arguments);
  if (earlier_kernel && IsLater(request)) {
    errno = ENOTTY;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
}

namespace berth {
namespace {

constexpr uid_t kUser = 7001;

// For its lifetime, this kernel has no ioctl that shows the namespaces of a process.
class EarlierKernel {
 public:
  EarlierKernel() { earlier_kernel = true; }
  ~EarlierKernel() { earlier_kernel = false; }
};

constexpr uid_t kSubordinate = 100'000;

TEST(NamespacesTest, CgroupNamesContainerOnlyInUnifiedHierarchy) {
  const struct {
    const char* name;
    const char* text;
    const char* path;
  } rows[] = {
      {"unified", "0::/kubepods/pod1/c1\n", "/kubepods/pod1/c1"},
      {"no cgroup", "0::/\n", ""},
      {"beside other hierarchies", "4:memory:/docker/c1\n0::/system.slice/docker.service\n", ""},
      {"none unified", "4:memory:/docker/c1\n", ""},
      {"a line end in its path", "0::/a\\012b\n", "/a\\012b"},
      {"unreadable", "", ""},
      {"outside this one's cgroup namespace", "0::/../c1\n", "/../c1"},
  };
  for (const auto& row : rows) EXPECT_EQ(DistinguishingCgroup(row.text), row.path) << row.name;
}

bool InNamespace(const std::string& kind, ino_t inode) {
  struct stat info = {};
  return ::stat(("/proc/self/ns/" + kind).c_str(), &info) == 0 && info.st_ino == inode;
}

// Whether this process may serve other users than one: in a user namespace of its own, all uids are its creator's.
bool InFirstUserNamespace() { return InNamespace("user", 0xEFFFFFFD); }

// A process that switches to a user and waits to be killed, in namespaces that root or the user creates; at most one of
// them creates user namespaces.
struct Stand {
  const char* name;
  bool roots_users = false;
  bool roots_pids = false;
  bool users = false;
  bool pids = false;
  bool subordinate = false;
  // Whether the process is in a container, and whether root created it.
  bool contained = false;
  bool by_root = false;
};

bool WriteTo(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Returns whether the kernel allowed it. Others' maps want CAP_SYS_ADMIN.
bool WriteMaps(pid_t pid, const std::string& map) {
  return WriteTo(absl::StrCat("/proc/", pid, "/uid_map"), map) && WriteTo(absl::StrCat("/proc/", pid, "/gid_map"), map);
}

class StandTest : public ::testing::TestWithParam<Stand> {
 protected:
  StandTest() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    go_read_.reset(ends[0]);
    go_write_.reset(ends[1]);
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    said_read_.reset(ends[0]);
    said_write_.reset(ends[1]);
  }
  ~StandTest() override {
    if (pidfd_) ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
  }

  // Exchange one byte in each direction. Return false if the other side has ended.
  static bool Say(int fd) { return ::write(fd, "g", 1) == 1; }
  static bool Hear(int fd) {
    char byte;
    return ::read(fd, &byte, 1) == 1;
  }

  [[noreturn]] void Run(const Stand& stand) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (stand.roots_users && (::unshare(CLONE_NEWUSER) < 0 || !Say(said_write_.get()) || !Hear(go_read_.get())))
      ::_exit(1);
    if (::setresgid(kUser, kUser, kUser) < 0 || ::setresuid(kUser, kUser, kUser) < 0) ::_exit(1);
    if (stand.users && (::unshare(CLONE_NEWUSER) < 0 || !Say(said_write_.get()) || !Hear(go_read_.get()))) ::_exit(1);
    if (stand.subordinate && ::setresuid(1, 1, 1) < 0) ::_exit(1);
    if (stand.pids) {
      if (::unshare(CLONE_NEWPID) < 0) ::_exit(1);
      const pid_t inner = ::fork();
      if (inner == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) ::pause();
      }
      const int32_t number = inner;
      if (inner < 0 || ::write(said_write_.get(), &number, sizeof(number)) != sizeof(number)) ::_exit(1);
      for (;;) ::pause();
    }
    const int32_t number = 0;
    if (::write(said_write_.get(), &number, sizeof(number)) != sizeof(number)) ::_exit(1);
    for (;;) ::pause();
  }

  // Starts the process as pid_, with the pidfd peer_. Returns whether the kernel allowed it.
  bool Start(const Stand& stand) {
    clone_args args = {};
    args.exit_signal = SIGCHLD;
    args.flags = CLONE_PIDFD | (stand.roots_pids ? CLONE_NEWPID : 0);
    int pidfd = -1;
    args.pidfd = reinterpret_cast<uint64_t>(&pidfd);
    child_ = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof(args)));
    if (child_ == 0) Run(stand);
    if (child_ < 0) return false;
    pidfd_.reset(pidfd);
    said_write_.reset();
    if (stand.users || stand.roots_users) {
      if (!Hear(said_read_.get())) return false;
      const std::string map =
          stand.users ? absl::StrCat("0 ", kUser, " 1\n1 ", kSubordinate, " 1\n") : "0 0 65536\n";
      if (!WriteMaps(child_, map) || !Say(go_write_.get())) return false;
    }
    int32_t inner = 0;
    if (::read(said_read_.get(), &inner, sizeof(inner)) != sizeof(inner)) return false;
    pid_ = inner > 0 ? inner : child_;
    peer_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    return static_cast<bool>(peer_);
  }

  // With few fds, the process must never be taken for another tenant's.
  void ExpectTheSameOrWantOfFds(const std::string& container) {
    const std::string root_made = *RootMadeContainerOf(peer_.get(), pid_);
    for (rlim_t count = 0; count <= 4; ++count) {
      SCOPED_TRACE(count);
      const FreeFds few(count);
      const absl::StatusOr<std::string> named = ContainerOf(peer_.get(), pid_);
      const absl::StatusOr<uint32_t> user = UserBehind(peer_.get(), pid_, kUser);
      const absl::StatusOr<std::string> charged = RootMadeContainerOf(peer_.get(), pid_);
      EXPECT_TRUE(named.ok() ? *named == container : absl::IsResourceExhausted(named.status())) << named.status();
      EXPECT_TRUE(user.ok() ? *user == kUser : absl::IsResourceExhausted(user.status())) << user.status();
      EXPECT_TRUE(charged.ok() ? *charged == root_made : absl::IsResourceExhausted(charged.status()))
          << charged.status();
      EXPECT_TRUE(count != 0 || !named.ok());
      EXPECT_TRUE(count != 4 || (named.ok() && user.ok() && charged.ok()));
    }
  }

  UniqueFd go_read_, go_write_, said_read_, said_write_;
  pid_t child_ = 0;
  UniqueFd pidfd_;
  pid_t pid_ = 0;
  UniqueFd peer_;
};

TEST_P(StandTest, ProcessHasItsUserAndContainer) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: changes users and namespaces";
  const Stand& stand = GetParam();
  if (!Start(stand)) GTEST_SKIP() << "the kernel makes no such process here";
  const absl::StatusOr<uint32_t> user = UserBehind(peer_.get(), pid_, stand.subordinate ? kSubordinate : kUser);
  ASSERT_TRUE(user.ok()) << user.status();
  EXPECT_EQ(*user, kUser);
  const absl::StatusOr<std::string> container = ContainerOf(peer_.get(), pid_);
  ASSERT_TRUE(container.ok()) << container.status();
  EXPECT_EQ(!container->empty(), stand.contained) << *container;
  struct stat ns = {};
  ASSERT_EQ(::stat(absl::StrCat("/proc/", pid_, "/ns/pid").c_str(), &ns), 0);
  EXPECT_EQ(*RootMadeContainerOf(peer_.get(), pid_), stand.by_root ? absl::StrCat("pid:", ns.st_ino) : "");
  ExpectTheSameOrWantOfFds(*container);
  // A process without a pid here has the same user, and in a container a name.
  const absl::StatusOr<std::string> unseen = ContainerOf(peer_.get(), 0);
  if (unseen.ok()) {
    EXPECT_TRUE(absl::StartsWith(*unseen, "pidns:") || absl::StartsWith(*unseen, "mntns:")) << *unseen;
    EXPECT_EQ(*UserBehind(peer_.get(), 0, *user), kUser);
  } else {
    EXPECT_TRUE(absl::IsUnimplemented(unseen.status())) << unseen.status();
  }
}

// Before Linux 6.11: a process with a pid here has the same user and container. A process without one is refused, so
// that it is never taken for another tenant's.
TEST_P(StandTest, EarlierKernelIdentifiesOnlyProcessesWithPid) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: changes users and namespaces";
  const Stand& stand = GetParam();
  if (!Start(stand)) GTEST_SKIP() << "the kernel makes no such process here";
  const uint32_t uid = stand.subordinate ? kSubordinate : kUser;
  const std::string container = *ContainerOf(peer_.get(), pid_);
  const std::string root_made = *RootMadeContainerOf(peer_.get(), pid_);
  // Without a cgroup of its own, only a number that an earlier kernel lacks names the container.
  const bool numbered = absl::StartsWith(container, "pidns:") || absl::StartsWith(container, "mntns:");
  const EarlierKernel kernel;
  const absl::StatusOr<std::string> named = ContainerOf(peer_.get(), pid_);
  EXPECT_TRUE(numbered ? absl::IsUnimplemented(named.status()) : named.ok() && *named == container)
      << named.status();
  const absl::StatusOr<uint32_t> user = UserBehind(peer_.get(), pid_, uid);
  EXPECT_TRUE(user.ok() && *user == kUser) << user.status();
  EXPECT_EQ(*RootMadeContainerOf(peer_.get(), pid_), root_made);
  EXPECT_TRUE(absl::IsUnimplemented(ContainerOf(peer_.get(), 0).status()));
  const absl::StatusOr<uint32_t> unseen = UserBehind(peer_.get(), 0, uid);
  if (InFirstUserNamespace()) {
    EXPECT_TRUE(absl::IsPermissionDenied(unseen.status())) << unseen.status();
  } else {
    EXPECT_TRUE(unseen.ok() && *unseen == uid) << unseen.status();
  }
  EXPECT_EQ(*RootMadeContainerOf(peer_.get(), 0), "");
}

INSTANTIATE_TEST_SUITE_P(
    Namespaces, StandTest,
    ::testing::Values(Stand{.name = "Plain"}, Stand{.name = "UserNamespace", .users = true},
                      Stand{.name = "UserAndPidNamespace", .users = true, .pids = true, .contained = true},
                      Stand{.name = "SubordinateUid", .users = true, .subordinate = true},
                      Stand{.name = "RootsPidNamespace", .roots_pids = true, .contained = true, .by_root = true},
                      Stand{.name = "RootsUserNamespace", .roots_users = true}),
    [](const auto& info) { return std::string(info.param.name); });

// A place in which a daemon starts, and the part of the reason why it cannot distinguish containers there.
struct Place {
  const char* name;
  bool earlier_kernel = true;
  bool own_pids = false;
  // The content of /proc/self/cgroup.
  const char* cgroups;
  // Empty where it distinguishes all containers.
  const char* reason;
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

constexpr char kUnified[] = "0::/system.slice/berthd.service\n";
constexpr char kSeveral[] = "4:memory:/system.slice\n0::/system.slice/berthd.service\n";

class PlaceTest : public ::testing::TestWithParam<Place> {
 protected:
  PlaceTest() {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    std::ofstream(cgroups_) << GetParam().cgroups;
  }
  ~PlaceTest() override { ::unlink(cgroups_.c_str()); }

  // In a new process, which has not looked at its PID namespace yet: prints the check's message in that place, and ends
  // with 0. Ends with 1 where the kernel does not allow the place.
  [[noreturn]] void Check() const {
    if (::unshare(CLONE_NEWNS | (GetParam().own_pids ? CLONE_NEWPID : 0)) < 0) ::_exit(1);
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0) ::_exit(1);
    const pid_t child = ::fork();
    if (child == 0) {
      if (GetParam().own_pids && ::mount("proc", "/proc", "proc", 0, nullptr) < 0) ::_exit(1);
      if (::mount(cgroups_.c_str(), "/proc/self/cgroup", nullptr, MS_BIND, nullptr) < 0) ::_exit(1);
      earlier_kernel = GetParam().earlier_kernel;
      const absl::Status status = CheckDistinguishesContainers();
      std::cerr << (status.ok() || absl::IsUnimplemented(status) ? "said: " : "failed: ") << status.message() << "."
                << std::endl;
      ::_exit(0);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  // Whether the kernel allows a process such places.
  static bool Allows() {
    const pid_t child = ::fork();
    if (child == 0) {
      const bool made = ::unshare(CLONE_NEWNS | CLONE_NEWPID) == 0;
      ::_exit(made && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 ? 0 : 1);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  const std::string cgroups_ = ::testing::TempDir() + "/namespaces_test-cgroups";
};

TEST_P(PlaceTest, CheckNamesContainersThatLookAlike) {
  if (!Allows()) GTEST_SKIP() << "needs CAP_SYS_ADMIN: makes namespaces";
  const Place& place = GetParam();
  const bool first = InNamespace("pid", 0xEFFFFFFC);
  if (!first && !place.own_pids) GTEST_SKIP() << "the test is in a PID namespace of its own";
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!place.earlier_kernel && !ContainerOf(self.get(), 0).ok()) GTEST_SKIP() << "needs Linux 6.11";
  EXPECT_EXIT(Check(), ::testing::ExitedWithCode(0), absl::StrCat("said: ", place.reason, "\\."));
}

INSTANTIATE_TEST_SUITE_P(
    Places, PlaceTest,
    ::testing::Values(
        Place{.name = "Numbered", .earlier_kernel = false, .cgroups = kSeveral, .reason = ""},
        Place{.name = "NumberedInOwnPids",
              .earlier_kernel = false, .own_pids = true, .cgroups = kSeveral, .reason = ""},
        Place{.name = "Unified", .cgroups = kUnified, .reason = ""},
        Place{.name = "SeveralHierarchies",
              .cgroups = kSeveral,
              .reason = "Linux numbers namespaces only from 6.11; and the cgroups here have several hierarchies"},
        Place{.name = "OwnPids",
              .own_pids = true,
              .cgroups = kUnified,
              .reason = "Linux numbers namespaces only from 6.11; and this process is in a PID namespace of its own"},
        Place{.name = "SeveralHierarchiesInOwnPids",
              .own_pids = true,
              .cgroups = kSeveral,
              .reason = "Linux numbers namespaces only from 6.11; and this process is in a PID namespace of its own"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(NamespacesTest, EndedProcessHasNeitherUserNorContainer) {
  const pid_t child = ::fork();
  if (child == 0) ::pause();
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  // Another process may have its pid by now, such as this process.
  for (const pid_t number : {0, child, ::getpid()}) {
    EXPECT_TRUE(absl::IsNotFound(ContainerOf(pidfd.get(), number).status())) << number;
    EXPECT_TRUE(absl::IsNotFound(UserBehind(pidfd.get(), number, 0).status())) << number;
    EXPECT_EQ(*RootMadeContainerOf(pidfd.get(), number), "") << number;
  }
}

TEST(NamespacesTest, ProcessWithoutMainThreadHasUserAndContainer) {
  const pid_t child = StartLoneThread();
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  EXPECT_EQ(*ContainerOf(pidfd.get(), child), "");
  EXPECT_EQ(*UserBehind(pidfd.get(), child, ::geteuid()), ::geteuid());
  EXPECT_EQ(*RootMadeContainerOf(pidfd.get(), child), "");
  {
    const EarlierKernel earlier;
    EXPECT_EQ(*UserBehind(pidfd.get(), child, ::geteuid()), ::geteuid());
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(absl::IsNotFound(UserBehind(pidfd.get(), child, ::geteuid()).status()));
}

TEST(NamespacesTest, OwnProcessHasNoContainer) {
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  EXPECT_EQ(*ContainerOf(self.get(), ::getpid()), "");
  EXPECT_EQ(*UserBehind(self.get(), ::getpid(), ::geteuid()), ::geteuid());
}

}  // namespace
}  // namespace berth
