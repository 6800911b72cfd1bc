// Churn: a thread of an actor that uses a block repeatedly, on several streams in turn. Each use expects the same
// number across the block's first page and increments it. The number counts the uses of all churning clients and
// exposes two uses at the same time.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_CHURN_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_CHURN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <berth/block.h>
#include <berth/stream.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth::testing {

class Churn {
 public:
  // Starts the thread, which ends by itself after `uses` uses.
  Churn(Mapping mapping, std::vector<std::shared_ptr<Stream>> streams, uint64_t uses);
  ~Churn() { Stop().IgnoreError(); }

  // Returns how many uses are made by now; each of them is finished with the daemon.
  uint64_t made() const { return made_; }

  // Waits until all uses are made; returns how many. Errors: the recorder's; kDataLoss where a use found two different
  // numbers.
  absl::StatusOr<uint64_t> Await();
  // As Await(), but makes no further uses.
  absl::StatusOr<uint64_t> Stop();

  // Returns the number in a block that no client uses. Errors: kDataLoss where the block holds two different numbers.
  static absl::StatusOr<uint64_t> Count(const Mapping& mapping);
  // As Count(), beside other clients' uses: reads the block in a use of its own on `stream`. No other thread may use
  // the stream meanwhile. Errors: also the recorder's.
  static absl::StatusOr<uint64_t> CountInUse(const Mapping& mapping, Stream& stream);

 private:
  void Run(uint64_t uses);
  absl::Status UseOnce(Stream& stream);

  const Mapping mapping_;
  const std::vector<std::shared_ptr<Stream>> streams_;
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> wrong_ = 0;
  std::atomic<uint64_t> made_ = 0;
  // Owned by the thread until the thread has ended.
  absl::Status status_;
  std::thread thread_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_CHURN_H_
