// Points: the places, between received and sent messages, where the test makes a process of the daemon die or one of
// its calls fail. An allocation can fail, too. The test sets the points in a file that it shares with
// tests/fault/points_library.cc, which is loaded first into the daemon's processes.
//
// No outside process can distinguish the single steps of a process between two messages; the ledger's commits are
// stores to memory. So a death before each sent message, after each, and after each received message covers every
// boundary between commit, fd store, reply and worker command.

#ifndef TESTS_FAULT_POINTS_H_
#define TESTS_FAULT_POINTS_H_

#include <atomic>
#include <cstdint>

namespace berth::testing {

enum class PointMode : uint32_t {
  // Only counts.
  kCount = 0,
  // Sends SIGKILL at the target.
  kDie = 1,
  // Fails the call at the target.
  kFail = 2,
  // Sends SIGSTOP at the target, a point of kDie's.
  kStop = 3,
  // Only counts requests to operator new; kFailNew fails the one at the target.
  kCountNew = 4,
  kFailNew = 5,
  // Fails every process start while it is set, whatever the target; counts the attempts.
  kFailStarts = 6,
};

// The file's layout. The name is written before the mode, and no process reads the name before that.
struct Points {
  // The name of the process whose calls count.
  char process[16];
  std::atomic<PointMode> mode;
  // Points passed since the reset to 0, and the point to act on.
  std::atomic<uint64_t> passed;
  std::atomic<uint64_t> target;
};

// Environment variable of the daemon with the file's name.
inline constexpr char kPointsVariable[] = "BERTH_TEST_POINTS";

}  // namespace berth::testing

#endif  // TESTS_FAULT_POINTS_H_
