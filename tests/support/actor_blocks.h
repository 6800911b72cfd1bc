// The part of an actor that leases blocks.

#ifndef TESTS_SUPPORT_ACTOR_BLOCKS_H_
#define TESTS_SUPPORT_ACTOR_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/block.h"
#include "client/gpu_ref.h"
#include "client/reservation.h"
#include "client/session.h"

namespace berth::testing {

// What a seed looks like in memory. Errors: kDataLoss.
void FillPattern(void* data, size_t size, uint64_t seed);
absl::Status CheckPattern(const void* data, size_t size, uint64_t seed);

// The number at `index` of a command's words. Errors: kInvalidArgument where there is none.
absl::StatusOr<uint64_t> Number(const std::vector<std::string>& words, size_t index);
// The answer of a command that only goes well or not.
absl::StatusOr<std::string> Said(const absl::Status& status);

// The export kinds that a word names: "fd", "ipc" or "any". Errors: kInvalidArgument.
absl::StatusOr<std::vector<ExportKind>> ParseKinds(absl::string_view word);
// What actors ask for that are not told: $BERTH_ACTOR_KIND, or FD.
std::vector<ExportKind> DefaultKinds();

class ActorBlocks {
 public:
  explicit ActorBlocks(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // Errors: kUnimplemented for a verb that is not about blocks.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);
  // Errors: kNotFound for a block that is not held or not mapped.
  absl::StatusOr<Mapping> MappingOf(const std::string& name) const;

 private:
  struct Held {
    Block block;
    std::optional<Mapping> mapping;
    std::optional<GpuRef<uint8_t>> ref;
  };

  absl::StatusOr<std::string> Allocate(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Reserve(const std::vector<std::string>& words);
  // Allocates as the option says: on its own, or out of a reservation.
  absl::StatusOr<Block> Lease(const BlockOptions& options, const std::string& reservation);
  absl::StatusOr<std::string> Import(const std::vector<std::string>& words);
  absl::StatusOr<std::string> DoWith(const std::string& verb, Held& held,
                                     const std::vector<std::string>& words);
  // `count` blocks, one after the other: allocates, maps, fills, checks, frees.
  absl::StatusOr<std::string> Churn(uint64_t count, uint64_t seed);

  const std::shared_ptr<Session> session_;
  std::map<std::string, Held> held_;
  std::map<std::string, Reservation> reservations_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_BLOCKS_H_
