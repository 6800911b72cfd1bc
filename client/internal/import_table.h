// ImportTable: what this process has opened by handles, once each: imports of one block share one mapping, whichever
// session they are of, and the last to go closes it.
//
// Entries are known by their block and its generations, never by their handle: a driver that hands an address out again
// may give the next block the bytes of one that is gone.

#ifndef CLIENT_INTERNAL_IMPORT_TABLE_H_
#define CLIENT_INTERNAL_IMPORT_TABLE_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/internal/mapped_memory.h"
#include "common/block_handle.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe. Opening and closing happen under its lock, so that one never crosses the other.
class ImportTable {
 public:
  // Opens the memory.
  using Opener = absl::FunctionRef<absl::StatusOr<std::unique_ptr<MappedMemory>>()>;

  // The process's own; it lives as long as the process.
  static ImportTable& OfProcess();

  // The memory of a block as mapped for a device, opened by `open` if nobody here has it open. It is closed with the
  // last object returned for it; the table must outlive them.
  // Errors: those of `open`.
  absl::StatusOr<std::unique_ptr<MappedMemory>> Open(const BlockHandle& block, const std::string& device,
                                                     Opener open) ABSL_LOCKS_EXCLUDED(mu_);

  // Blocks that are open.
  size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Two daemons' blocks may have the same generation.
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

#endif  // CLIENT_INTERNAL_IMPORT_TABLE_H_
