#include "daemon/server/memory_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "daemon/broker/needed_thread.h"

namespace berth {

absl::StatusOr<Bytes> ReadOwnMemory() {
  const UniqueFd file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  char text[128] = {};
  if (!file || ::read(file.get(), text, sizeof(text) - 1) < 0) return OsError("/proc/self/statm", errno);
  // In pages: the address space; resident; and the resident pages that are shared or of files.
  unsigned long long size = 0, resident = 0, shared = 0;
  if (::sscanf(text, "%llu %llu %llu", &size, &resident, &shared) != 3) {
    return absl::InternalError(absl::StrCat("unexpected content of /proc/self/statm: \"", text, "\""));
  }
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return SaturatingSub(Bytes(resident * page), Bytes(shared * page));
}

absl::Status MemoryBound::Check(Bytes bound, Bytes idle) {
  const Bytes least(2 * idle.count());
  if (bound >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("limits.broker_memory: ", FormatBytes(bound),
                                                 ", but a broker without clients uses ", FormatBytes(idle),
                                                 "; the minimum is twice that, ", FormatBytes(least)));
}

Bytes MemoryBound::Effective(Bytes bound, Bytes idle) {
  return std::clamp(Bytes(2 * idle.count()), bound, Bytes(2 * bound.count()));
}

MemoryBound::Verdict MemoryBound::Judge(absl::Time now, Bytes now_has, bool trimmed) {
  if (now_has <= bound_) return Verdict::kGoOn;
  if (!trimmed && now - last_trim_ >= kTrimPause) {
    last_trim_ = now;
    return Verdict::kTrim;
  }
  return now - start_ >= kLeastLife ? Verdict::kEnd : Verdict::kGoOn;
}

MemoryWatch::MemoryWatch(MemoryBound bound, std::function<void(Bytes)> end)
    : shown_bound_(bound.bound()),
      end_(std::move(end)),
      bound_(bound),
      thread_(NeededThread("the bound of memory", [this] { Run(); })) {}

MemoryWatch::~MemoryWatch() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    stopped_.Signal();
  }
  thread_.join();
}

void MemoryWatch::Run() {
  const auto look = [this] {
    // After a failed read, the last reading stays valid.
    const Bytes now_has = ReadOwnMemory().value_or(has());
    has_.store(now_has.count(), std::memory_order_relaxed);
    return now_has;
  };
  MutexLock lock(&mu_);
  while (!stop_) {
    Bytes now_has = look();
    MemoryBound::Verdict verdict = bound_.Judge(SteadyNow(), now_has, /*trimmed=*/false);
    if (verdict == MemoryBound::Verdict::kTrim) {
      ::malloc_trim(0);
      now_has = look();
      verdict = bound_.Judge(SteadyNow(), now_has, /*trimmed=*/true);
    }
    if (verdict == MemoryBound::Verdict::kEnd) end_(now_has);
    const absl::Time next = SteadyNow() + kPeriod;
    for (bool late = false; !stop_ && !late;) late = stopped_.WaitWithDeadline(&mu_, next);
  }
}

}  // namespace berth
