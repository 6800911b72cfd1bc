// Hoard: what one client process of a crowd has at a daemon, and what it waits for (crowd.h says what for).

#ifndef TESTS_BENCH_HOARD_H_
#define TESTS_BENCH_HOARD_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "client/block.h"
#include "client/permit.h"
#include "client/session.h"
#include "common/mutex.h"

namespace berth::bench {

// The pool of a crowd's permits, and the label of its sessions.
inline constexpr char kHoardPool[] = "leases";
inline constexpr char kHoardLabel[] = "crowd";

// What each of a crowd's sessions has.
struct HoardShare {
  // Blocks, of 2 MiB each; and whether something is written into each.
  uint32_t blocks = 0;
  bool written = false;
  // Permits held, and permits waited for.
  uint32_t permits = 0;
  uint32_t waiters = 0;
};

// Used by one thread.
class Hoard {
 public:
  // Opens a session and has it get its share, but for what it waits for.
  absl::Status Add(const std::string& folder, const HoardShare& share);
  // Has every session ask for what it waits for, once all permits are out.
  void BeginToWait(const HoardShare& share);
  // Errors: kDataLoss where a block is not as it was written.
  absl::Status CheckBytes() const;
  // Gives back what was granted at once, and returns when everything that was waited for is granted.
  absl::Status PassPermitsOn();
  // Gives back all. Errors: the daemon's, where it did not know one of them.
  absl::Status Return();

 private:
  struct HeldBlock {
    Block block;
    Mapping mapping;
  };
  // Where the calls that wait put what they get.
  struct Waited {
    Mutex mu;
    CondVar changed;
    uint64_t open ABSL_GUARDED_BY(mu) = 0;
    std::vector<absl::StatusOr<Permit>> granted ABSL_GUARDED_BY(mu);
  };

  std::vector<std::shared_ptr<Session>> sessions_;
  std::vector<Block> blocks_;
  std::vector<HeldBlock> written_;
  std::vector<Permit> permits_;
  // Shared with the calls, which the SDK may answer when this is gone.
  const std::shared_ptr<Waited> waited_ = std::make_shared<Waited>();
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_HOARD_H_
