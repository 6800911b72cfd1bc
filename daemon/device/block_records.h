// BlockRecords is what a backend knows of the blocks that it made: it gives them their generations, tells which block
// is meant, and refuses those that are not here.

#ifndef DAEMON_DEVICE_BLOCK_RECORDS_H_
#define DAEMON_DEVICE_BLOCK_RECORDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "daemon/device/memory_resource.h"

namespace berth {

// Thread-compatible, but for the generations, which are one sequence over all threads of the process.
class BlockRecords {
 public:
  // Where a block is and how large: what the backend goes by, whatever the block that it is shown says.
  struct Record {
    Bytes bytes;
    uint64_t address = 0;
  };

  explicit BlockRecords(std::string device) : device_(std::move(device)) {}

  const std::string& device() const { return device_; }
  // The bytes of all blocks.
  Bytes live() const { return Bytes(live_); }

  // Notes a new block. The caller adds what leaves the process.
  MemoryBlock Add(Bytes bytes, absl::string_view tag, uint64_t address = 0);

  // Errors: INVALID_FIELD, NOT_FOUND, STALE, as MemoryResource says.
  absl::StatusOr<Record> Find(const MemoryBlock& block) const;

  // Requires: Find() finds it.
  void Remove(const MemoryBlock& block);

 private:
  const std::string device_;
  std::map<uint64_t, Record> records_;
  uint64_t live_ = 0;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_BLOCK_RECORDS_H_
