// Churn: a thread of an actor's that uses a block again and again, on several streams in turn. Each use finds the same
// number all over the block's first page and leaves it one higher, so the number counts the uses of all who churn, and
// one that any two of them make at once shows.

#ifndef TESTS_SUPPORT_ACTOR_CHURN_H_
#define TESTS_SUPPORT_ACTOR_CHURN_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/block.h"
#include "client/stream.h"

namespace berth::testing {

class Churn {
 public:
  // Starts, and ends by itself after `uses`.
  Churn(Mapping mapping, std::vector<std::shared_ptr<Stream>> streams, uint64_t uses);
  ~Churn() { Stop().IgnoreError(); }

  // Waits until the uses were made; returns how many. Errors: the recorder's; kDataLoss where a use found two numbers.
  absl::StatusOr<uint64_t> Await();
  // Await(), but makes no more of them.
  absl::StatusOr<uint64_t> Stop();

  // The number that a block holds, which nobody uses. Errors: kDataLoss where it holds two.
  static absl::StatusOr<uint64_t> Count(const Mapping& mapping);

 private:
  void Run(uint64_t uses);
  absl::Status UseOnce(Stream& stream);

  const Mapping mapping_;
  const std::vector<std::shared_ptr<Stream>> streams_;
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> wrong_ = 0;
  // The thread's until it has ended.
  uint64_t made_ = 0;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_CHURN_H_
