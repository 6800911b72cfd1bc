// BlockHandle: the name of a block, which one process passes to another for an import. The handle identifies the
// location and the generations of the memory, and grants no right by itself.

#ifndef BERTH_BLOCK_HANDLE_H_
#define BERTH_BLOCK_HANDLE_H_

#include <cstdint>
#include <string>

#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

struct BlockHandle {
  // The node's random id.
  uint64_t node = 0;
  // The daemon's incarnation: a handle of another incarnation is stale.
  uint64_t incarnation = 0;
  std::string device_uuid;
  BlockId block;
  // Generation of the device's memory.
  uint64_t generation = 0;
  // Unique on the node, never reused.
  uint64_t block_generation = 0;

  friend bool operator==(const BlockHandle&, const BlockHandle&) = default;
};
template <typename Archive>
void Fields(Archive& archive, BlockHandle& value) {
  archive(value.node, value.incarnation, value.device_uuid, value.block, value.generation, value.block_generation);
}

// Returns "berth2:<node>:<incarnation>:<uuid>:<block>:<generation>:<block generation>", the numbers decimal.
std::string FormatHandle(const BlockHandle& handle);
// Parses a handle. Errors: kInvalidArgument naming the text.
absl::StatusOr<BlockHandle> ParseHandle(absl::string_view text);

}  // namespace berth

#endif  // BERTH_BLOCK_HANDLE_H_
