#include "daemon/server/memory_scrub_checks.h"

#include <string.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <berth/bytes.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"
#include "common/os/memfd.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "daemon/device/memory/memory_scrub_check.h"
#include "daemon/device/monitor/context_memory.h"
#include "daemon/device/worker/device_identity.h"
#include "daemon/supervisor/processes/child_process.h"

namespace berth {
namespace {

// Less than the supervisor's limit for the inventory. A check takes under a second.
constexpr std::chrono::seconds kLimit(6);
// Four times kMemoryScrubBytes.
constexpr Bytes kLeastFree = GiB(4);

// The result that a check's process writes to its file.
struct Found {
  ScrubFinding scrub;
  uint32_t context_mib = 0;
};
static_assert(std::is_trivially_copyable_v<Found> && sizeof(Found) == sizeof(ScrubFinding) + 4);

// A check in progress.
struct Check {
  DeviceRecord* record;
  ChildProcess process;
  UniqueFd found;
};

absl::StatusOr<Check> Start(DeviceRecord& record) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd found, CreateMemfd("berth-scrub", 0));
  BERTH_ASSIGN_OR_RETURN(
      ChildProcess process,
      ChildProcess::Start({"--role=clears-check", absl::StrCat("--device=", record.ordinal),
                           absl::StrCat("--device-uuid=", record.uuid)},
                          found.get()));
  return Check{.record = &record, .process = std::move(process), .found = std::move(found)};
}

Found Take(Check& check, std::chrono::steady_clock::time_point deadline) {
  if (!check.process.WaitUntil(deadline)) {
    return {.scrub = ScrubNotTried(absl::StrCat("the check did not end within ", kLimit.count(), " s"))};
  }
  const ProcessEnd end = check.process.Reap();
  Found found;
  if (::pread(check.found.get(), &found, sizeof(found), 0) == sizeof(found)) return found;
  return {.scrub = ScrubNotTried(absl::StrCat("the check ended without a result: ", end.ToString()))};
}

bool AreAlike(const DeviceRecord& a, const DeviceRecord& b) {
  return a.backend == b.backend && strncmp(a.name, b.name, sizeof(a.name)) == 0;
}

}  // namespace

void TakeContextsOfTheirModel(std::vector<DeviceRecord>* records) {
  for (DeviceRecord& record : *records) {
    for (const DeviceRecord& other : *records) {
      if (record.context_mib == 0 && AreAlike(record, other)) record.context_mib = other.context_mib;
    }
  }
}

void RunMemoryScrubChecks(std::vector<DeviceRecord>* records) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  std::vector<Check> checks;
  for (DeviceRecord& record : *records) {
    if (record.backend == BackendKind::kHost || record.fault != DeviceFault::kNone) continue;
    if (Bytes(record.free_bytes) < kLeastFree) {
      record.scrub =
          ScrubNotTried(absl::StrCat("less than ", FormatBytes(kLeastFree), " of the device are free"));
      continue;
    }
    absl::StatusOr<Check> check = Start(record);
    if (check.ok()) {
      checks.push_back(*std::move(check));
    } else {
      record.scrub = ScrubNotTried(check.status().message());
    }
  }
  // The destructor kills a check that is late.
  for (Check& check : checks) {
    const Found found = Take(check, deadline);
    check.record->scrub = found.scrub;
    check.record->context_mib = found.context_mib;
  }
  TakeContextsOfTheirModel(records);
}

int RunMemoryScrubCheckRole(const Options& options) {
  if (!BecomeChild(absl::StrCat("berth-scrub", options.device), options.parent).ok()) return 1;
  Found found;
  const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
  const absl::StatusOr<int> ordinal =
      driver.ok() ? FindCudaOrdinal(**driver, options.device, options.device_uuid) : driver.status();
  if (ordinal.ok()) {
    const ContextMeter meter(options.device_uuid);
    found.scrub = CheckScrub(**driver, *ordinal, kMemoryScrubBytes, [&] {
      found.context_mib = static_cast<uint32_t>((meter.Measure().count() + MiB(1).count() - 1) / MiB(1).count());
    });
  } else {
    found.scrub = ScrubNotTried(ordinal.status().message());
  }
  return ::write(kChildFd, &found, sizeof(found)) == sizeof(found) ? 0 : 1;
}

}  // namespace berth
