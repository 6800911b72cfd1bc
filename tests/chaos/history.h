// History: what a process did with permits, in a file that it has mapped, so that it outlives its SIGKILL. Times are of
// CLOCK_MONOTONIC, which all processes of a machine share.
//
//   BERTH_ASSIGN_OR_RETURN(History history, History::Create(path));
//   const uint64_t holding = history.Granted(kPool, units);    // once the reply has arrived
//   history.Releasing(holding);                                // before the release is sent
//
// So a holding lasts at least from the one to the other, and that of a process that was killed at least until it was
// last seen alive.

#ifndef TESTS_CHAOS_HISTORY_H_
#define TESTS_CHAOS_HISTORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace berth::testing {

// Now, in nanoseconds of CLOCK_MONOTONIC.
int64_t MonotonicNanoseconds();

struct HistoryEvent {
  enum class Kind : uint32_t { kGranted = 1, kReleasing };
  Kind kind = Kind::kGranted;
  // Which pool, as its users number them.
  uint32_t pool = 0;
  int64_t at = 0;
  // Counted from 0 within a process.
  uint64_t holding = 0;
  uint64_t units = 0;
};

// Move-only. One writer, one thread at a time; who reads the steps may be another process.
class History {
 public:
  static constexpr size_t kMaxEvents = size_t{1} << 16;

  // An empty one, in a new file. Errors: those of the file system.
  static absl::StatusOr<History> Create(const std::string& path);
  // One that somebody else writes, or has written. Errors: those of the file system.
  static absl::StatusOr<History> Open(const std::string& path);

  History(History&& other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
  History& operator=(History&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~History();

  // Whether there is room for one more holding.
  bool has_room() const;
  // Requires: has_room().
  uint64_t Granted(uint32_t pool, uint64_t units);
  void Releasing(uint64_t holding);
  // One more thing was done, of whatever kind.
  void Step();

  uint64_t steps() const;
  // All that was written by now.
  std::vector<HistoryEvent> Read() const;

 private:
  struct File;
  explicit History(File* file) : file_(file) {}
  static absl::StatusOr<History> Map(const std::string& path, int flags);
  void Write(const HistoryEvent& event);

  File* file_;
};

}  // namespace berth::testing

#endif  // TESTS_CHAOS_HISTORY_H_
