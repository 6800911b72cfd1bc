// DeviceRuntime is a device's memory as this process makes it: a backend, and around it, from the outside in, a budget,
// a log, statistics and a guard.
//
//   DeviceRuntimes runtimes([&](uint32_t ordinal) { return DeviceRuntime::Open({.ordinal = ordinal}, {}); });
//   BERTH_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, runtimes.Get(0));
//   BERTH_ASSIGN_OR_RETURN(MemoryBlock block, runtime->Allocate(MiB(2), "block 7"));

#ifndef DAEMON_DEVICE_DEVICE_RUNTIME_H_
#define DAEMON_DEVICE_DEVICE_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "daemon/device/budget_resource.h"
#include "daemon/device/guard_resource.h"
#include "daemon/device/memory_log.h"
#include "daemon/device/memory_resource.h"
#include "daemon/device/statistics_resource.h"

namespace berth {

// Which device, and what its memory is made of.
struct DeviceSpec {
  BackendKind kind = BackendKind::kHost;
  uint32_t ordinal = 0;
  // A host device's; a GPU's driver says its own.
  Bytes total;
  // The daemon's run folder, for memory that is named there (kHostNamed).
  std::string folder;
};

// The memory of a device, bare. Errors: UNSUPPORTED where there is no CUDA and a GPU is asked for; those of the driver.
absl::StatusOr<std::unique_ptr<MemoryResource>> OpenBackend(const DeviceSpec& spec);

struct RuntimeOptions {
  // Of what is outstanding here; without it there is none. What was handed over is on somebody else's account.
  std::optional<Bytes> limit;
  Poison poison;
};

// DeviceRuntime is thread-safe, by one lock around the stack: a worker has one thread, and nobody else waits for it.
class DeviceRuntime : public MemoryResource {
 public:
  // Calls that are remembered, for who asks what a worker did before it failed.
  static constexpr size_t kLogRecords = 64;

  // Errors: OpenBackend()'s.
  static absl::StatusOr<std::unique_ptr<DeviceRuntime>> Open(const DeviceSpec& spec,
                                                             const RuntimeOptions& options);
  // The same around a backend of the caller's making.
  static std::unique_ptr<DeviceRuntime> Compose(std::unique_ptr<MemoryResource> backend,
                                                const RuntimeOptions& options);

  MemoryStatistics statistics() const ABSL_LOCKS_EXCLUDED(mu_);
  // The last kLogRecords calls, oldest first. What the budget refuses is not among them.
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
  // Before the stack, which writes to it.
  MemoryLogRing log_ ABSL_GUARDED_BY(mu_){kLogRecords};
  // Within the stack.
  StatisticsResource* statistics_ ABSL_PT_GUARDED_BY(mu_) = nullptr;
  std::unique_ptr<BudgetResource> stack_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_DEVICE_DEVICE_RUNTIME_H_
