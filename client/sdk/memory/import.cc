#include "client/sdk/memory/import.h"

#include <utility>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "berth/v1/resources.pb.h"
#include "client/sdk/memory/import_table.h"
#include "client/sdk/transport/live_object_counts.h"
#include "common/status_macros.h"
#include "common/wire/state_page.h"

namespace berth::internal {

Import::Import(std::shared_ptr<SessionCore> core, const v1::Block& block, Arrival arrival, bool read_only,
               std::optional<IpcHandle> handle, std::string device,
               std::function<void(const BlockEvent&)> on_event)
    : core_(std::move(core)),
      block_(block),
      id_(arrival.import),
      lease_(std::move(arrival.lease)),
      tracked_(std::move(arrival.tracked)),
      read_only_(read_only),
      device_(std::move(device)),
      fd_(std::move(arrival.fd)),
      handle_(handle) {
  live_object_counts.blocks.fetch_add(1, std::memory_order_relaxed);
  live_object_counts.bytes.fetch_add(block_.bytes(), std::memory_order_relaxed);
  if (on_event == nullptr) return;
  MutexLock lock(&mu_);
  listener_ = core_->channel().WatchBlock(*lease_, std::move(on_event));
}

Import::~Import() {
  live_object_counts.blocks.fetch_sub(1, std::memory_order_relaxed);
  live_object_counts.bytes.fetch_sub(block_.bytes(), std::memory_order_relaxed);
  MutexLock lock(&mu_);
  memory_.reset();
  fd_.reset();
  if (!announced_ && core_->Check().ok()) core_->channel().LetGo(id_);
}

absl::StatusOr<void*> Import::Map() {
  MutexLock lock(&mu_);
  if (memory_ == nullptr) {
    if (handle_.has_value()) {
      BERTH_ASSIGN_OR_RETURN(memory_, OpenOnce(*handle_));
    } else if (fd_) {
      BERTH_ASSIGN_OR_RETURN(memory_, MapMemory(block_, fd_.get(), read_only_, device_));
    } else {
      return absl::FailedPreconditionError("the block was freed by this process");
    }
    fd_.reset();
    handle_.reset();
  }
  return memory_->address();
}

absl::StatusOr<std::unique_ptr<MappedMemory>> Import::OpenOnce(const IpcHandle& handle) const {
  const BlockHandle named = {.node = block_.handle().node(),
                             .incarnation = block_.handle().incarnation(),
                             .block = BlockId(block_.handle().block()),
                             .block_generation = block_.handle().block_generation()};
  absl::StatusOr<std::unique_ptr<MappedMemory>> memory = ImportTable::OfProcess().Open(
      named, device_, [&] { return OpenMemory(block_, handle, core_->folder(), device_); });
  const DeviceEntry& entry = core_->page().devices[block_.device()];
  // Host memory that is not found belonged to a context worker that has ended. The page may not show that yet. A device
  // that is not found is one that this process does not see.
  const bool gone = block_.kind() == v1::MEMORY_KIND_HOST && absl::IsNotFound(memory.status());
  if (gone || (!memory.ok() && entry.context_generation.load() != block_.handle().generation())) {
    return Refuse(Reason::kStale, "{why}", {{"why", "context rebuilt"}});
  }
  return memory;
}

absl::Status Import::Synchronize() {
  MutexLock lock(&mu_);
  return memory_ == nullptr ? absl::OkStatus() : memory_->Synchronize();
}

std::function<void(const BlockEvent&)> Import::on_event() {
  MutexLock lock(&mu_);
  return listener_ == nullptr ? nullptr : listener_->on_event;
}

void Import::StopListening() {
  MutexLock lock(&mu_);
  listener_.reset();
}

void Import::CloseUnannounced() {
  MutexLock lock(&mu_);
  memory_.reset();
  fd_.reset();
  handle_.reset();
  announced_ = true;
}

// ---- import_table.h ------------------------------------------------------------------------------------------

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
