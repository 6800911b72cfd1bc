#include "daemon/clears_checks.h"

#include <string.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"
#include "common/memfd.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "daemon/device/clears_check.h"
#include "daemon/device/context_memory.h"
#include "daemon/device/device_identity.h"
#include "daemon/vault/child_process.h"

namespace berth {
namespace {

// Less than the vault gives the inventory. A check takes under a second.
constexpr std::chrono::seconds kLimit(6);
// Four times what is looked at.
constexpr Bytes kRoom = GiB(4);

// What the process of a check leaves in its file.
struct Found {
  ClearsFinding clears;
  uint32_t context_mib = 0;
};
static_assert(std::is_trivially_copyable_v<Found> && sizeof(Found) == sizeof(ClearsFinding) + 4);

// A check under way.
struct Check {
  DeviceRecord* record;
  ChildProcess process;
  UniqueFd found;
};

absl::StatusOr<Check> Start(DeviceRecord& record) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd found, CreateMemfd("berth-clears", 0));
  BERTH_ASSIGN_OR_RETURN(
      ChildProcess process,
      ChildProcess::Start({"--role=clears-check", absl::StrCat("--device=", record.ordinal),
                           absl::StrCat("--device-uuid=", record.uuid)},
                          found.get()));
  return Check{.record = &record, .process = std::move(process), .found = std::move(found)};
}

Found Take(Check& check, std::chrono::steady_clock::time_point deadline) {
  if (!check.process.WaitUntil(deadline)) {
    return {.clears = ClearsNotTried(absl::StrCat("it did not end in ", kLimit.count(), " s"))};
  }
  const ProcessEnd end = check.process.Reap();
  Found found;
  if (::pread(check.found.get(), &found, sizeof(found), 0) == sizeof(found)) return found;
  return {.clears = ClearsNotTried(absl::StrCat("it ended without a finding: ", end.ToString()))};
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

void RunClearsChecks(std::vector<DeviceRecord>* records) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  std::vector<Check> checks;
  for (DeviceRecord& record : *records) {
    if (record.backend == BackendKind::kHost || record.failed != 0) continue;
    if (Bytes(record.free_bytes) < kRoom) {
      record.clears =
          ClearsNotTried(absl::StrCat("less than ", FormatBytes(kRoom), " of the device are free"));
      continue;
    }
    absl::StatusOr<Check> check = Start(record);
    if (check.ok()) {
      checks.push_back(*std::move(check));
    } else {
      record.clears = ClearsNotTried(check.status().message());
    }
  }
  // One that is late is killed when it goes.
  for (Check& check : checks) {
    const Found found = Take(check, deadline);
    check.record->clears = found.clears;
    check.record->context_mib = found.context_mib;
  }
  TakeContextsOfTheirModel(records);
}

int RunClearsCheckRole(const Options& options) {
  if (!BecomeChild(absl::StrCat("berth-clears", options.device), options.parent).ok()) return 1;
  Found found;
  absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
  if (driver.ok()) {
    const absl::Status there = CheckDevice(**driver, static_cast<int>(options.device), options.device_uuid);
    if (!there.ok()) driver = there;
  }
  if (driver.ok()) {
    const ContextMeter meter(options.device);
    found.clears = CheckClears(**driver, static_cast<int>(options.device), kClearsCheckBytes, [&] {
      found.context_mib = static_cast<uint32_t>((meter.Measure().count() + MiB(1).count() - 1) / MiB(1).count());
    });
  } else {
    found.clears = ClearsNotTried(driver.status().message());
  }
  return ::write(kChildFd, &found, sizeof(found)) == sizeof(found) ? 0 : 1;
}

}  // namespace berth
