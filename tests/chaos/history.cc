#include "tests/chaos/history.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "common/os/os_error.h"
#include "common/os/unique_fd.h"

namespace berth::testing {

int64_t MonotonicNanoseconds() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct History::File {
  std::atomic<uint64_t> steps;
  std::atomic<uint64_t> intervals;
  // An event counts once this count includes it: a process may end at any instruction.
  std::atomic<uint64_t> count;
  HistoryEvent events[kMaxEvents];
};

absl::StatusOr<History> History::Create(const std::string& path) {
  return Map(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC);
}

absl::StatusOr<History> History::Open(const std::string& path) { return Map(path, O_RDWR | O_CLOEXEC); }

absl::StatusOr<History> History::Map(const std::string& path, int flags) {
  const UniqueFd file(::open(path.c_str(), flags, 0600));
  if (!file || ::ftruncate(file.get(), sizeof(File)) < 0) return OsError(path, errno);
  void* const memory = ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return OsError("mmap", errno);
  return History(static_cast<File*>(memory));
}

History::~History() {
  if (file_ != nullptr) ::munmap(file_, sizeof(File));
}

bool History::has_capacity() const { return file_->count.load() + 2 <= kMaxEvents; }

uint64_t History::Granted(uint32_t pool, uint64_t units) {
  const uint64_t interval = file_->intervals.fetch_add(1);
  Write({.kind = HistoryEvent::Kind::kGranted,
         .pool = pool,
         .at = MonotonicNanoseconds(),
         .interval = interval,
         .units = units});
  return interval;
}

void History::Releasing(uint64_t interval) {
  Write({.kind = HistoryEvent::Kind::kReleasing, .at = MonotonicNanoseconds(), .interval = interval});
}

void History::Write(const HistoryEvent& event) {
  const uint64_t count = file_->count.load();
  file_->events[count] = event;
  file_->count.store(count + 1);
}

void History::Step() { file_->steps.fetch_add(1); }

uint64_t History::steps() const { return file_->steps.load(); }

std::vector<HistoryEvent> History::Read() const {
  const uint64_t count = std::min<uint64_t>(file_->count.load(), kMaxEvents);
  return std::vector<HistoryEvent>(file_->events, file_->events + count);
}

}  // namespace berth::testing
