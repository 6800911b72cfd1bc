#include "common/os/process_capacity.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/os/os_error.h"
#include "common/os/proc_file.h"
#include "common/os/stack_limit.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// Distance to a thread limit within which concurrently starting threads may reach it.
constexpr uint64_t kNear = 64;

rlim_t LimitOf(__rlimit_resource resource) {
  rlimit limit = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  ::getrlimit(resource, &limit);
  return limit.rlim_cur;
}

std::string Read(const std::string& path) { return ReadProcFile(path).value_or(""); }

std::optional<uint64_t> ReadNumber(const std::string& path) {
  uint64_t number = 0;
  return absl::SimpleAtoi(Read(path), &number) ? std::optional(number) : std::nullopt;
}

// A control group with a limit on its processes' threads.
struct PidsLimit {
  std::string cgroup;
  uint64_t max = 0;
  uint64_t current = 0;
};

// Returns the limit nearest to exhaustion among this process's control groups. Nothing if no group has a visible limit.
std::optional<PidsLimit> NearestPidsLimit() {
  std::string root = "/sys/fs/cgroup";
  std::string path;
  for (const absl::string_view line : absl::StrSplit(Read("/proc/self/cgroup"), '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[1] == "pids") {
      root = "/sys/fs/cgroup/pids";
      path = std::string(fields[2]);
      break;
    }
    if (fields[1].empty()) path = std::string(fields[2]);
  }
  std::optional<PidsLimit> nearest;
  // In a container the path may begin above the mounted folder.
  for (bool more = !path.empty(); more;) {
    more = path.size() > 1;
    const std::string folder = absl::StrCat(root, path);
    const std::optional<uint64_t> max = ReadNumber(absl::StrCat(folder, "/pids.max"));
    const std::optional<uint64_t> current =
        max.has_value() ? ReadNumber(absl::StrCat(folder, "/pids.current")) : std::nullopt;
    const auto left = [](uint64_t of, uint64_t used) { return of - std::min(of, used); };
    if (current.has_value() &&
        (!nearest.has_value() || left(*max, *current) < left(nearest->max, nearest->current))) {
      nearest = PidsLimit{.cgroup = path, .max = *max, .current = *current};
    }
    path.resize(std::max<size_t>(path.rfind('/'), 1));
  }
  return nearest;
}

// Returns whether `threads` more threads may exceed a limit.
bool MayLackThreads(uint64_t threads) {
  const rlim_t limit = LimitOf(RLIMIT_NPROC);
  if (limit != RLIM_INFINITY) {
    // The count of all users' threads bounds this user's from above: "0.20 0.18 0.12 1/80 11206".
    const std::vector<std::string> load = absl::StrSplit(Read("/proc/loadavg"), absl::ByAnyChar(" /"));
    uint64_t all = 0;
    if (load.size() < 5 || !absl::SimpleAtoi(load[4], &all) || all + threads + kNear > limit) return true;
  }
  const std::optional<PidsLimit> pids = NearestPidsLimit();
  return pids.has_value() && pids->current + threads + kNear > pids->max;
}

// Maps `bytes` as a stack or a heap counts, in the address space and as data. Returns 0, or errno.
int TryMemory(size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno;
  ::munmap(memory, bytes);
  return 0;
}

// Returns whether the memory limits leave another stack.
bool HasCapacityForStack() { return TryMemory(StackBytes()) == 0; }

// Idle threads that only occupy resources. The C library reuses their stacks and heaps for later threads. The threads
// use the C library's locks: abseil's allocate memory for each thread, and abort without it.
class Placeholders {
 public:
  Placeholders() = default;
  Placeholders(const Placeholders&) = delete;
  Placeholders& operator=(const Placeholders&) = delete;
  ~Placeholders() {
    {
      const std::lock_guard lock(mu_);
      over_ = true;
    }
    changed_.notify_all();
    for (const pthread_t thread : threads_) ::pthread_join(thread, nullptr);
    // A joined thread counts until the kernel has released its tid.
    for (const pid_t number : numbers_) {
      for (int i = 0; i < kMaxLooks && ::syscall(SYS_tgkill, ::getpid(), number, 0) == 0; ++i) {
        const timespec pause = {.tv_sec = 0, .tv_nsec = 20'000};
        ::nanosleep(&pause, nullptr);
      }
    }
  }

  // Starts `count` threads. Returns 0, or errno.
  int Start(int count) {
    threads_.reserve(static_cast<size_t>(count));
    numbers_.reserve(static_cast<size_t>(count));
    // Blocks all signals: the program's handlers must not run on these threads.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    for (int i = 0; i < count && error == 0; ++i) {
      pthread_t thread;
      error = ::pthread_create(&thread, nullptr, &Run, this);
      if (error == 0) threads_.push_back(thread);
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return numbers_.size() == threads_.size(); });
    return error;
  }

 private:
  static constexpr int kMaxLooks = 1000;

  static void* Run(void* argument) {
    auto& self = *static_cast<Placeholders*>(argument);
    // Makes the C library create a heap for the thread, if memory allows.
    void* volatile small = ::malloc(1);
    ::free(small);
    std::unique_lock lock(self.mu_);
    self.numbers_.push_back(static_cast<pid_t>(::syscall(SYS_gettid)));
    self.changed_.notify_all();
    self.changed_.wait(lock, [&self] { return self.over_; });
    return nullptr;
  }

  std::mutex mu_;
  std::condition_variable changed_;
  bool over_ = false;
  std::vector<pthread_t> threads_;
  // Kernel tids of the threads that have started.
  std::vector<pid_t> numbers_;
};

absl::Status CheckFds(absl::string_view purpose, int count) {
  std::vector<UniqueFd> taken;
  taken.reserve(static_cast<size_t>(count));
  // Any open fd can be duplicated.
  const UniqueFd any(::open("/", O_PATH | O_CLOEXEC));
  for (int error = any ? 0 : errno; error != 0 || taken.size() + 1 < static_cast<size_t>(count);) {
    if (error != 0) return OsError(absl::StrCat(count, " file descriptors for ", purpose), error);
    taken.emplace_back(::fcntl(any.get(), F_DUPFD_CLOEXEC, 0));
    if (!taken.back()) error = errno;
  }
  return absl::OkStatus();
}

absl::Status NoStack(absl::string_view what) {
  const absl::Status lacks = OsError(what, ENOMEM);
  if (StackBytes() <= kMaxStackBytes) return lacks;
  return absl::ResourceExhaustedError(absl::StrCat(lacks.message(), " (a stack has ", StackBytes() >> 20,
                                                   " MiB by RLIMIT_STACK: ulimit -s ", kMaxStackBytes >> 10,
                                                   " lowers it)"));
}

}  // namespace

absl::Status NotStarted(absl::string_view what, int error) {
  if (error != EAGAIN) return OsError(what, error);
  // The C library reports EAGAIN for a failed stack allocation, too.
  if (!HasCapacityForStack()) return NoStack(what);
  std::vector<std::string> limits;
  if (const rlim_t limit = LimitOf(RLIMIT_NPROC); limit != RLIM_INFINITY) {
    limits.push_back(absl::StrCat("RLIMIT_NPROC of user ", ::getuid(), " is ", limit, ": ulimit -u raises it"));
  }
  if (const std::optional<PidsLimit> pids = NearestPidsLimit(); pids.has_value()) {
    limits.push_back(
        absl::StrCat("pids.max of cgroup ", pids->cgroup, " is ", pids->max, ", ", pids->current, " in use"));
  }
  if (limits.empty()) limits.push_back("the node has too many threads: see kernel.threads-max");
  return absl::ResourceExhaustedError(
      absl::StrCat(OsError(what, error).message(), " (", absl::StrJoin(limits, "; "), ")"));
}

int GrpcThreads() { return static_cast<int>(std::clamp<int64_t>(::sysconf(_SC_NPROCESSORS_CONF), 2, 32)) + 5; }

absl::Status CheckCapacity(absl::string_view purpose, const ProcessNeeds& needs) {
  char why[128];
  if (LacksStack(why, sizeof(why))) return absl::ResourceExhaustedError(absl::StrCat(purpose, ": ", why));
  BERTH_RETURN_IF_ERROR(CheckFds(purpose, needs.fds));
  const bool memory_is_limited = LimitOf(RLIMIT_AS) != RLIM_INFINITY || LimitOf(RLIMIT_DATA) != RLIM_INFINITY ||
                                 !HasCapacityForStack();
  if (!memory_is_limited && !MayLackThreads(static_cast<uint64_t>(needs.threads))) return absl::OkStatus();
  Placeholders threads;
  if (const int error = threads.Start(needs.threads); error != 0) {
    return NotStarted(absl::StrCat("one of ", needs.threads, " threads for ", purpose), error);
  }
  if (!memory_is_limited || needs.memory == Bytes(0)) return absl::OkStatus();
  const int error = TryMemory(needs.memory.count());
  return error == 0 ? absl::OkStatus() : OsError(absl::StrCat(FormatBytes(needs.memory), " for ", purpose), error);
}

}  // namespace berth
