// History: a process's record of its permits, in a mapped file, so that the record outlives a SIGKILL. Times are of
// CLOCK_MONOTONIC, which all processes of a machine share.
//
//   BERTH_ASSIGN_OR_RETURN(History history, History::Create(path));
//   const uint64_t interval = history.Granted(kPool, units);   // once the reply has arrived
//   history.Releasing(interval);                               // before the release is sent
//
// So an interval lasts at least from the first record to the second; a killed process held at least until it was last
// seen alive.

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

// Returns the current time in nanoseconds of CLOCK_MONOTONIC.
int64_t MonotonicNanoseconds();

struct HistoryEvent {
  enum class Kind : uint32_t { kGranted = 1, kReleasing };
  Kind kind = Kind::kGranted;
  // The pool's number, which its users assign.
  uint32_t pool = 0;
  int64_t at = 0;
  // The interval's number, from 0 within a process.
  uint64_t interval = 0;
  uint64_t units = 0;
};

// Move-only. One writer, one thread at a time; another process may read the steps.
class History {
 public:
  static constexpr size_t kMaxEvents = size_t{1} << 16;

  // Creates an empty history in a new file. Errors: those of the file system.
  static absl::StatusOr<History> Create(const std::string& path);
  // Opens a history that another process writes, or has written. Errors: those of the file system.
  static absl::StatusOr<History> Open(const std::string& path);

  History(History&& other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
  History& operator=(History&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~History();

  // Whether another interval fits.
  bool has_capacity() const;
  // Requires: has_capacity().
  uint64_t Granted(uint32_t pool, uint64_t units);
  void Releasing(uint64_t interval);
  // Counts one more step of any kind.
  void Step();

  uint64_t steps() const;
  // Returns all events written so far.
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
