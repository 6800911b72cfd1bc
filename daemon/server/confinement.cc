#include "daemon/server/confinement.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <iterator>
#include <span>
#include <vector>

#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "daemon/base/namespaces.h"

namespace berth {
namespace {

// System calls that no process of the daemon needs, but an attacker in it would. Module calls are absent, because the
// GPU's driver may load its own modules.
constexpr int kNobodys[] = {
    // Access to other processes.
    SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(perf_event_open),
    // Another view of the file system and namespaces.
    SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(unshare), SCMP_SYS(setns),
    SCMP_SYS(open_by_handle_at), SCMP_SYS(fsopen), SCMP_SYS(fsmount), SCMP_SYS(move_mount), SCMP_SYS(open_tree),
    // The kernel itself.
    SCMP_SYS(bpf), SCMP_SYS(kexec_load), SCMP_SYS(kexec_file_load), SCMP_SYS(reboot), SCMP_SYS(swapon),
    SCMP_SYS(swapoff), SCMP_SYS(acct), SCMP_SYS(syslog), SCMP_SYS(iopl), SCMP_SYS(ioperm), SCMP_SYS(io_uring_setup),
    SCMP_SYS(quotactl), SCMP_SYS(settimeofday), SCMP_SYS(clock_settime), SCMP_SYS(adjtimex), SCMP_SYS(clock_adjtime),
    SCMP_SYS(sethostname), SCMP_SYS(setdomainname),
    // Keys.
    SCMP_SYS(add_key), SCMP_SYS(request_key), SCMP_SYS(keyctl),
};

// Further system calls that a broker does not need.
constexpr int kNoBrokers[] = {
    // Other programs and processes, and their resources.
    SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(fork), SCMP_SYS(vfork), SCMP_SYS(pidfd_getfd), SCMP_SYS(kcmp),
    // The kernel, its modules, and other users.
    SCMP_SYS(userfaultfd), SCMP_SYS(init_module), SCMP_SYS(finit_module), SCMP_SYS(delete_module),
    SCMP_SYS(modify_ldt), SCMP_SYS(setuid), SCMP_SYS(setgid), SCMP_SYS(setreuid), SCMP_SYS(setregid),
    SCMP_SYS(setresuid), SCMP_SYS(setresgid), SCMP_SYS(setgroups), SCMP_SYS(capset),
};

// The ioctl requests of a broker on its own fds: terminal check, readable bytes, non-blocking mode, close-on-exec; and
// on a peer's pidfd and namespaces, the requests that distinguish tenants.
std::vector<uint32_t> BrokersRequests() {
  std::vector<uint32_t> requests = {TCGETS, FIONREAD, FIONBIO, FIOCLEX};
  requests.insert(requests.end(), std::begin(kNamespaceRequests), std::end(kNamespaceRequests));
  return requests;
}

absl::Status DropCapabilities() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, data) < 0) return OsError("capget", errno);
  const uint32_t tracing = data[0].permitted & (uint32_t{1} << CAP_SYS_PTRACE);
  for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    // A process that may not change its bounding set (EPERM) cannot regain capabilities from it.
    if (capability != CAP_SYS_PTRACE && ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 && errno != EPERM) {
      return OsError("prctl(PR_CAPBSET_DROP)", errno);
    }
  }
  data[0] = {.effective = tracing, .permitted = tracing, .inheritable = 0};
  data[1] = {};
  if (::syscall(SYS_capset, &header, data) < 0) return OsError("capset", errno);
  return absl::OkStatus();
}

// The sanitizers fork and trace themselves.
#ifdef BERTH_SANITIZED
constexpr bool kFilters = false;
#else
constexpr bool kFilters = true;
#endif

// A seccomp filter that allows everything by default; takes effect with Load().
class Filter {
 public:
  Filter() : filter_(::seccomp_init(SCMP_ACT_ALLOW)), error_(filter_ == nullptr ? -ENOMEM : 0) {
    // A binary search for the call's number instead of a linear one.
    if (error_ == 0) error_ = ::seccomp_attr_set(filter_, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    // no_new_privs is set elsewhere, if at all.
    if (error_ == 0) error_ = ::seccomp_attr_set(filter_, SCMP_FLTATR_CTL_NNP, 0);
    // Return the kernel's own error code instead of a generic one.
    if (error_ == 0) error_ = ::seccomp_attr_set(filter_, SCMP_FLTATR_API_SYSRAWRC, 1);
  }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;
  ~Filter() { ::seccomp_release(filter_); }

  // The kernel logs the call that ended a process.
  void Log() {
    if (error_ == 0) error_ = ::seccomp_attr_set(filter_, SCMP_FLTATR_CTL_LOG, 1);
  }
  template <typename... Conditions>
  void On(uint32_t action, int call, Conditions... conditions) {
    if (error_ == 0) error_ = ::seccomp_rule_add(filter_, action, call, sizeof...(conditions), conditions...);
  }
  void OnEach(uint32_t action, std::span<const int> calls) {
    for (const int call : calls) On(action, call);
  }
  // Returns 0, or minus the errno of the first failure.
  int Load() { return error_ == 0 ? ::seccomp_load(filter_) : error_; }

 private:
  const scmp_filter_ctx filter_;
  int error_;
};

// Allows ioctl with the given requests only, and refuses it with EPERM for all others. This is a list of comparisons of
// one argument, which libseccomp cannot express. The call numbers are those of this architecture, which the other
// filter has checked.
int AllowRequests(std::span<const uint32_t> requests) {
  const auto size = static_cast<uint8_t>(requests.size());
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      // The kernel also reads only the lower half.
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
  };
  for (uint8_t i = 0; i < size; ++i) {
    const auto to_allow = static_cast<uint8_t>(size - i);
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, requests[i], to_allow, 0));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter = {.len = static_cast<uint16_t>(program.size()), .filter = program.data()};
  return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_LOG, &filter) < 0 ? -errno : 0;
}

absl::Status ConfineCalls() {
  Filter filter;
  filter.Log();
  filter.OnEach(SCMP_ACT_KILL_PROCESS, kNobodys);
  filter.OnEach(SCMP_ACT_KILL_PROCESS, kNoBrokers);
  // Allow threads, but no processes. clone3 has its arguments in memory, where no filter can read them; on ENOSYS the C
  // library calls clone.
  filter.On(SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3));
  filter.On(SCMP_ACT_KILL_PROCESS, SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
  // Allow no request to a GPU's driver, whichever device the broker opens ('F' is NVIDIA's type, 'd' that of all DRM
  // drivers).
  for (const char type : {'F', 'd'}) {
    filter.On(SCMP_ACT_KILL_PROCESS, SCMP_SYS(ioctl),
              SCMP_A1(SCMP_CMP_MASKED_EQ, 0xff00, static_cast<scmp_datum_t>(type) << 8));
  }
  // gRPC tests for IPv6, and works without it.
  filter.On(SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), SCMP_A0(SCMP_CMP_NE, AF_UNIX));
  int error = filter.Load();
  // A driver's requests may have no type in their number: those of nvidia-uvm are 1, 2, 3 and so on.
  if (error == 0) error = AllowRequests(BrokersRequests());
  return error == 0 ? absl::OkStatus() : OsError("seccomp", -error);
}

}  // namespace

absl::Status ConfineDaemon() {
  if (!kFilters) return absl::OkStatus();
  Filter filter;
  // Refuse instead of kill, so that a driver that tries gets an error.
  filter.OnEach(SCMP_ACT_ERRNO(EPERM), kNobodys);
  const int error = filter.Load();
  return error == 0 || error == -EACCES || error == -EPERM ? absl::OkStatus() : OsError("seccomp", -error);
}

absl::Status ConfineBroker() {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return OsError("prctl(PR_SET_NO_NEW_PRIVS)", errno);
  BERTH_RETURN_IF_ERROR(DropCapabilities());
  return kFilters ? ConfineCalls() : absl::OkStatus();
}

}  // namespace berth
