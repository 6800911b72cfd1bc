// Block commands of the test actor.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_BLOCKS_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/gpu_ref.h>
#include <berth/reservation.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

namespace berth::testing {

// Writes or checks the byte pattern of `seed`. Errors: kDataLoss for a pattern that differs.
void FillPattern(void* data, size_t size, uint64_t seed);
absl::Status CheckPattern(const void* data, size_t size, uint64_t seed);

// Parses the number at `index` of a command's words. Errors: kInvalidArgument where there is none.
absl::StatusOr<uint64_t> Number(const std::vector<std::string>& words, size_t index);
// Returns "" for OK, or the error: the answer of a command without a result.
absl::StatusOr<std::string> Said(const absl::Status& status);

// Parses export kinds: "fd", "ipc" or "any". Errors: kInvalidArgument.
absl::StatusOr<std::vector<ExportKind>> ParseKinds(absl::string_view word);
// Returns the export kinds of a command that names none: $BERTH_ACTOR_KIND, or FD.
std::vector<ExportKind> DefaultKinds();

// The events that a block's listener received. Thread-safe.
class HeardBlockEvents {
 public:
  void Add(const BlockEvent& event) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns each event as its number and the number of its reason, such as "1:11".
  std::string Text() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  std::vector<BlockEvent> events_ ABSL_GUARDED_BY(mu_);
};

class ActorBlocks {
 public:
  explicit ActorBlocks(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // Errors: kUnimplemented for a verb of another command group.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);
  // Errors: kNotFound for a block that this actor does not hold or has not mapped.
  absl::StatusOr<Mapping> MappingOf(const std::string& name) const;

 private:
  struct Held {
    Block block;
    std::optional<Mapping> mapping;
    std::optional<GpuRef<uint8_t>> ref;
    std::shared_ptr<HeardBlockEvents> heard;
  };

  absl::StatusOr<std::string> Allocate(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Reserve(const std::vector<std::string>& words);
  // Allocates a block by itself, or from the named reservation.
  absl::StatusOr<Block> Lease(const BlockOptions& options, const std::string& reservation);
  absl::StatusOr<std::string> Import(const std::vector<std::string>& words);
  absl::StatusOr<std::string> DoWith(const std::string& verb, Held& held,
                                     const std::vector<std::string>& words);
  // Allocates, maps, fills, checks and frees `count` blocks, one after the other.
  absl::StatusOr<std::string> Churn(uint64_t count, uint64_t seed);

  const std::shared_ptr<Session> session_;
  std::map<std::string, Held> held_;
  std::map<std::string, Reservation> reservations_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_BLOCKS_H_
