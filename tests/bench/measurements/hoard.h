// Hoard: the leases of one client process of a crowd, and its waiting requests (crowd.h explains their use).

#ifndef TESTS_BENCH_MEASUREMENTS_HOARD_H_
#define TESTS_BENCH_MEASUREMENTS_HOARD_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <berth/block.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"

namespace berth::bench {

// The pool of a crowd's permits, and the label of its sessions.
inline constexpr char kHoardPool[] = "leases";
inline constexpr char kHoardLabel[] = "crowd";

// The share of each session in a crowd.
struct HoardShare {
  // Blocks of 2 MiB each; and whether each is written to.
  uint32_t blocks = 0;
  bool written = false;
  // Number of permits held, and of permits waited for.
  uint32_t permits = 0;
  uint32_t waiters = 0;
};

// Used by one thread.
class Hoard {
 public:
  // Opens a session and acquires its share, except for the requests that wait.
  absl::Status Add(const std::string& folder, const HoardShare& share);
  // Has every session send its waiting requests, once all permits are granted.
  void BeginToWait(const HoardShare& share);
  // Errors: kDataLoss where a block's content has changed.
  absl::Status CheckBytes() const;
  // Releases the permits granted at once, and returns when every waiting request is granted.
  absl::Status PassPermitsOn();
  // Releases everything. Errors: the daemon's, where it does not know one of the leases.
  absl::Status Return();

 private:
  struct HeldBlock {
    Block block;
    Mapping mapping;
  };
  // Results of the calls that wait.
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
  // Shared with the calls, which the SDK may answer after this object is destroyed.
  const std::shared_ptr<Waited> waited_ = std::make_shared<Waited>();
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_MEASUREMENTS_HOARD_H_
