// DeviceRuntime: a device's memory as this process makes it. A runtime is a backend wrapped, from the outside in, by a
// budget, a log, statistics and a guard.
//
//   DeviceRuntimes runtimes([&](uint32_t ordinal) { return DeviceRuntime::Open({.ordinal = ordinal}, {}); });
//   BERTH_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, runtimes.Get(0));
//   BERTH_ASSIGN_OR_RETURN(MemoryBlock block, runtime->Allocate(MiB(2), "block 7"));

#ifndef DAEMON_DEVICE_MEMORY_DEVICE_RUNTIME_H_
#define DAEMON_DEVICE_MEMORY_DEVICE_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "daemon/device/memory/budget_resource.h"
#include "daemon/device/memory/guard_resource.h"
#include "daemon/device/memory/memory_log.h"
#include "daemon/device/memory/memory_resource.h"
#include "daemon/device/memory/statistics_resource.h"

namespace berth {

// A device, and what backs its memory.
struct DeviceSpec {
  BackendKind kind = BackendKind::kHost;
  // The daemon's ordinal of a host device; CUDA's ordinal of a GPU in this process.
  uint32_t ordinal = 0;
  // Memory of a host device; a GPU's driver reports its own.
  Bytes total;
  // The daemon's run folder, for memory named there (kHostNamed).
  std::string folder;
};

// Opens a device's bare backend. Errors: UNSUPPORTED for a GPU without CUDA; those of the driver.
absl::StatusOr<std::unique_ptr<MemoryResource>> OpenBackend(const DeviceSpec& spec);

struct RuntimeOptions {
  // Limit of the outstanding bytes here; nullopt for no limit. Memory that was handed over is charged to its new owner.
  std::optional<Bytes> limit;
  Poison poison;
};

// DeviceRuntime is thread-safe, by one lock around the stack: a worker has one thread, so no other thread waits for the
// lock.
class DeviceRuntime : public MemoryResource {
 public:
  // Number of calls recorded, to examine a worker's activity before a failure.
  static constexpr size_t kLogRecords = 64;

  // Errors: as OpenBackend().
  static absl::StatusOr<std::unique_ptr<DeviceRuntime>> Open(const DeviceSpec& spec,
                                                             const RuntimeOptions& options);
  // As Open(), around a backend that the caller made.
  static std::unique_ptr<DeviceRuntime> Compose(std::unique_ptr<MemoryResource> backend,
                                                const RuntimeOptions& options);

  MemoryStatistics statistics() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the last kLogRecords calls, oldest first. Calls that the budget rejects are not recorded.
  std::vector<MemoryRecord> log() const ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Deallocate(MemoryBlock& block) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Fill(const MemoryBlock& block, uint8_t value) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Reap() override ABSL_LOCKS_EXCLUDED(mu_);
  Bytes outstanding() const override ABSL_LOCKS_EXCLUDED(mu_);
  Bytes granularity() const override { return granularity_; }
  BackendKind kind() const override { return kind_; }
  const std::string& device() const override { return device_; }

 private:
  DeviceRuntime(std::unique_ptr<MemoryResource> backend, const RuntimeOptions& options);

  const Bytes granularity_;
  const BackendKind kind_;
  const std::string device_;

  mutable Mutex mu_;
  // Declared before the stack, which writes to it.
  MemoryLogRing log_ ABSL_GUARDED_BY(mu_){kLogRecords};
  // Points into the stack.
  StatisticsResource* statistics_ ABSL_PT_GUARDED_BY(mu_) = nullptr;
  std::unique_ptr<BudgetResource> stack_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_DEVICE_RUNTIME_H_
