// The name of a block: what one process tells another so that it can import it. It carries where the memory is and of
// which generations, and gives no right by itself.

#ifndef COMMON_BLOCK_HANDLE_H_
#define COMMON_BLOCK_HANDLE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace berth {

struct BlockHandle {
  uint64_t node = 0;
  uint64_t incarnation = 0;
  std::string device_uuid;
  BlockId block;
  // Of the device's memory.
  uint64_t generation = 0;
  // Node-wide, never reused.
  uint64_t block_generation = 0;

  friend bool operator==(const BlockHandle&, const BlockHandle&) = default;
};
template <typename Archive>
void Fields(Archive& archive, BlockHandle& value) {
  archive(value.node, value.incarnation, value.device_uuid, value.block, value.generation, value.block_generation);
}

// "berth1:<node>:<incarnation>:<uuid>:<block>:<generation>:<block generation>", the numbers hexadecimal.
std::string FormatHandle(const BlockHandle& handle);
// Errors: kInvalidArgument naming the text.
absl::StatusOr<BlockHandle> ParseHandle(absl::string_view text);

}  // namespace berth

#endif  // COMMON_BLOCK_HANDLE_H_
