#include <berth/block_handle.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace berth {

std::string FormatHandle(const BlockHandle& handle) {
  return absl::StrCat("berth2:", handle.node, ":", handle.incarnation, ":", handle.device_uuid, ":",
                      handle.block.value(), ":", handle.generation, ":", handle.block_generation);
}

absl::StatusOr<BlockHandle> ParseHandle(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  BlockHandle handle;
  uint64_t block;
  if (parts.size() != 7 || parts[0] != "berth2" || !absl::SimpleAtoi(parts[1], &handle.node) ||
      !absl::SimpleAtoi(parts[2], &handle.incarnation) || parts[3].empty() ||
      !absl::SimpleAtoi(parts[4], &block) || !absl::SimpleAtoi(parts[5], &handle.generation) ||
      !absl::SimpleAtoi(parts[6], &handle.block_generation)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, 200), "\" is not a block handle"));
  }
  handle.device_uuid = std::string(parts[3]);
  handle.block = BlockId(block);
  return handle;
}

}  // namespace berth
