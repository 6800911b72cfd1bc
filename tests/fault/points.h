// Points: where a process of the daemon's can be made to die, or a call of its to fail: between what it hears and what
// it says; or to get no memory. The test has them in a file that it shares with tests/fault/points_library.cc, which is
// loaded into the daemon's processes before anything else.
//
// What a process does between two messages nobody outside can tell from what it does at once; the ledger's commits are
// stores to memory. So to die before each message that is sent, after each, and after each that is received, is to die
// at every boundary between commit, custody, reply and what a worker is told.

#ifndef TESTS_FAULT_POINTS_H_
#define TESTS_FAULT_POINTS_H_

#include <atomic>
#include <cstdint>

namespace berth::testing {

enum class PointMode : uint32_t {
  // Counts alone.
  kCount = 0,
  // SIGKILL at the target.
  kDie = 1,
  // The call at the target fails.
  kFail = 2,
  // SIGSTOP at the target, a point of kDie's.
  kStop = 3,
  // Counts what is asked of operator new, and no more; there is no memory at the target.
  kCountNew = 4,
  kFailNew = 5,
  // No process can be started as long as it is set, whatever the target; counts who tried.
  kFailStarts = 6,
};

// As it lies in the file. The name is written before the mode, and no process looks at it before.
struct Points {
  // Whose calls count, by the process's name.
  char process[16];
  std::atomic<PointMode> mode;
  // Points passed since it was set to 0, and the one that is meant.
  std::atomic<uint64_t> passed;
  std::atomic<uint64_t> target;
};

// Names the file, in the daemon's environment.
inline constexpr char kPointsVariable[] = "BERTH_TEST_POINTS";

}  // namespace berth::testing

#endif  // TESTS_FAULT_POINTS_H_
