#include "client/sdk/memory/import_table.h"

#include <utility>

#include "common/status_macros.h"

namespace berth::internal {

// One reference to an open entry; its destructor closes the reference.
class ImportTable::Shared final : public MappedMemory {
 public:
  Shared(ImportTable* table, Key key, MappedMemory* memory)
      : table_(*table), key_(std::move(key)), memory_(*memory) {}
  ~Shared() override { table_.Close(key_); }
  void* address() const override { return memory_.address(); }
  absl::Status Synchronize() override { return memory_.Synchronize(); }

 private:
  ImportTable& table_;
  const Key key_;
  MappedMemory& memory_;
};

ImportTable& ImportTable::OfProcess() {
  // Never destroyed: imports that outlive main() may still close their entries.
  static auto* const table = new ImportTable;
  return *table;
}

absl::StatusOr<std::unique_ptr<MappedMemory>> ImportTable::Open(const BlockHandle& block,
                                                                const std::string& device, Opener open) {
  Key key = {.node = block.node,
             .incarnation = block.incarnation,
             .block_generation = block.block_generation,
             .device = device};
  MutexLock lock(&mu_);
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    BERTH_ASSIGN_OR_RETURN(std::unique_ptr<MappedMemory> memory, open());
    found = entries_.emplace(key, Entry{.memory = std::move(memory)}).first;
  }
  ++found->second.opens;
  return std::make_unique<Shared>(this, std::move(key), found->second.memory.get());
}

void ImportTable::Close(const Key& key) {
  MutexLock lock(&mu_);
  const auto found = entries_.find(key);
  if (--found->second.opens == 0) entries_.erase(found);
}

size_t ImportTable::size() const {
  MutexLock lock(&mu_);
  return entries_.size();
}

}  // namespace berth::internal
