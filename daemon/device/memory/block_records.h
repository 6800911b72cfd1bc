// BlockRecords: a backend's records of the blocks that it made. The records assign the blocks' generations, identify
// blocks, and reject blocks that are not recorded.

#ifndef DAEMON_DEVICE_MEMORY_BLOCK_RECORDS_H_
#define DAEMON_DEVICE_MEMORY_BLOCK_RECORDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <berth/bytes.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/device/memory/memory_resource.h"

namespace berth {

// Thread-compatible, except for the generations, which are one sequence over all threads of the process.
class BlockRecords {
 public:
  // Location and size of a block. The backend trusts these values and not those of the block that a caller passes.
  struct Record {
    Bytes bytes;
    uint64_t address = 0;
  };

  explicit BlockRecords(std::string device) : device_(std::move(device)) {}

  const std::string& device() const { return device_; }
  // Returns the bytes of all blocks together.
  Bytes live() const { return Bytes(live_); }

  // Records a new block. The caller adds its fd or handle.
  MemoryBlock Add(Bytes bytes, absl::string_view tag, uint64_t address = 0);

  // Errors: INVALID_FIELD, NOT_FOUND, STALE, as MemoryResource defines them.
  absl::StatusOr<Record> Find(const MemoryBlock& block) const;

  // Requires: Find() succeeds for the block.
  void Remove(const MemoryBlock& block);

 private:
  const std::string device_;
  std::map<uint64_t, Record> records_;
  uint64_t live_ = 0;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_BLOCK_RECORDS_H_
