// ImportTable: the memory that this process has opened by handles. Each block is opened once: imports of one block
// share one mapping, across sessions, and the last import closes it.
//
// The key of an entry is the block and its generations, never the handle. A driver that reuses an address may give a
// new block the handle bytes of a released block.

#ifndef CLIENT_SDK_MEMORY_IMPORT_TABLE_H_
#define CLIENT_SDK_MEMORY_IMPORT_TABLE_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <berth/block_handle.h>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/sdk/memory/mapped_memory.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe. The table opens and closes memory under its lock, so that an open and a close never run at once.
class ImportTable {
 public:
  // Opens the memory.
  using Opener = absl::FunctionRef<absl::StatusOr<std::unique_ptr<MappedMemory>>()>;

  // The process's table; it lives as long as the process.
  static ImportTable& OfProcess();

  // Returns a block's memory as mapped for a device; calls `open` if the memory is not yet open in this process. The
  // last object returned for it closes the memory. The table must outlive these objects.
  // Errors: those of `open`.
  absl::StatusOr<std::unique_ptr<MappedMemory>> Open(const BlockHandle& block, const std::string& device,
                                                     Opener open) ABSL_LOCKS_EXCLUDED(mu_);

  // Number of open blocks.
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Includes the node, because blocks of two daemons may have the same generation.
  struct Key {
    uint64_t node = 0;
    uint64_t incarnation = 0;
    uint64_t block_generation = 0;
    std::string device;

    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Entry {
    std::unique_ptr<MappedMemory> memory;
    uint64_t opens = 0;
  };
  class Shared;

  void Close(const Key& key) ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_MEMORY_IMPORT_TABLE_H_
