#include "daemon/device/memory/device_runtime.h"

#include <algorithm>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"
#include "daemon/device/memory/device_runtimes.h"
#include "daemon/device/memory/direct_backend.h"
#include "daemon/device/memory/host_backend.h"
#include "daemon/device/memory/logging_resource.h"
#include "daemon/device/memory/named_backend.h"
#include "daemon/device/memory/vmm_backend.h"

namespace berth {
namespace {

constexpr Bytes kNoLimit = Bytes(UINT64_MAX);

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryResource>> OpenBackend(const DeviceSpec& spec) {
  const std::string host = absl::StrCat("HOST-", spec.ordinal);
  if (spec.kind == BackendKind::kHost) return std::make_unique<HostBackend>(host, spec.total);
  if (spec.kind == BackendKind::kHostNamed) {
    return NamedBackend::Open(spec.folder, spec.ordinal, host, spec.total);
  }
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  const int ordinal = static_cast<int>(spec.ordinal);
  if (spec.kind == BackendKind::kCudaDirect) return DirectBackend::Open(*driver, ordinal);
  return VmmBackend::Open(*driver, ordinal);
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> DeviceRuntime::Open(const DeviceSpec& spec,
                                                                   const RuntimeOptions& options) {
  BERTH_ASSIGN_OR_RETURN(std::unique_ptr<MemoryResource> backend, OpenBackend(spec));
  return Compose(std::move(backend), options);
}

std::unique_ptr<DeviceRuntime> DeviceRuntime::Compose(std::unique_ptr<MemoryResource> backend,
                                                      const RuntimeOptions& options) {
  return std::unique_ptr<DeviceRuntime>(new DeviceRuntime(std::move(backend), options));
}

DeviceRuntime::DeviceRuntime(std::unique_ptr<MemoryResource> backend, const RuntimeOptions& options)
    : granularity_(backend->granularity()), kind_(backend->kind()), device_(backend->device()) {
  auto guard = std::make_unique<GuardResource>(std::move(backend), options.poison);
  auto statistics = std::make_unique<StatisticsResource>(std::move(guard));
  statistics_ = statistics.get();
  auto logging = std::make_unique<LoggingResource>(std::move(statistics), &log_);
  stack_ = std::make_unique<BudgetResource>(std::move(logging), options.limit.value_or(kNoLimit));
}

MemoryStatistics DeviceRuntime::statistics() const {
  MutexLock lock(&mu_);
  return statistics_->statistics();
}

std::vector<MemoryRecord> DeviceRuntime::log() const {
  MutexLock lock(&mu_);
  return log_.records();
}

absl::StatusOr<MemoryBlock> DeviceRuntime::Allocate(Bytes bytes, absl::string_view tag) {
  MutexLock lock(&mu_);
  return stack_->Allocate(bytes, tag);
}

absl::Status DeviceRuntime::Deallocate(MemoryBlock& block) {
  MutexLock lock(&mu_);
  return stack_->Deallocate(block);
}

absl::StatusOr<UniqueFd> DeviceRuntime::HandOver(MemoryBlock& block) {
  MutexLock lock(&mu_);
  return stack_->HandOver(block);
}

absl::StatusOr<MemoryBlock> DeviceRuntime::Adopt(UniqueFd fd, absl::string_view tag) {
  MutexLock lock(&mu_);
  return stack_->Adopt(std::move(fd), tag);
}

absl::Status DeviceRuntime::Fill(const MemoryBlock& block, uint8_t value) {
  MutexLock lock(&mu_);
  return stack_->Fill(block, value);
}

absl::Status DeviceRuntime::Reap() {
  MutexLock lock(&mu_);
  return stack_->Reap();
}

Bytes DeviceRuntime::outstanding() const {
  MutexLock lock(&mu_);
  return stack_->outstanding();
}

// ---- device_runtimes.h ---------------------------------------------------------------------------------------

DeviceRuntimes::DeviceRuntimes(Launcher start, Clock now) : start_(std::move(start)), now_(std::move(now)) {}

absl::StatusOr<DeviceRuntime*> DeviceRuntimes::Get(uint32_t ordinal) {
  if (ordinal >= kMaxDeviceOrdinals) {
    return Refuse(Reason::kOutOfRange, "{field} {value} exceeds the last, {limit}",
                  {{"field", "device ordinal"}, {"value", ordinal}, {"limit", kMaxDeviceOrdinals - 1}});
  }
  Slot& slot = slots_[ordinal];
  if (DeviceRuntime* const ready = slot.ready.load(std::memory_order_acquire); ready != nullptr) return ready;
  MutexLock lock(&slot.mu);
  if (slot.runtime != nullptr) return slot.runtime.get();
  if (now_() < slot.retry_at) return slot.failure;
  absl::StatusOr<std::unique_ptr<DeviceRuntime>> started = start_(ordinal);
  if (!started.ok()) {
    slot.failure = started.status();
    slot.retry_at = now_() + slot.back_off;
    slot.back_off = std::min(2 * slot.back_off, kLongestBackOff);
    return slot.failure;
  }
  slot.runtime = *std::move(started);
  slot.ready.store(slot.runtime.get(), std::memory_order_release);
  return slot.runtime.get();
}

}  // namespace berth
