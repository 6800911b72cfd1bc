#include "daemon/clears_checks.h"

#include <stdio.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"
#include "common/memfd.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "daemon/device/clears_check.h"
#include "daemon/vault/child_process.h"

namespace berth {
namespace {

// Less than the vault gives the inventory. A check takes under a second.
constexpr std::chrono::seconds kLimit(6);
// Four times what is looked at.
constexpr Bytes kRoom = GiB(4);

// A check under way.
struct Check {
  DeviceRecord* record;
  ChildProcess process;
  UniqueFd finding;
};

absl::StatusOr<Check> Start(DeviceRecord& record) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd finding, CreateMemfd("berth-clears", 0));
  BERTH_ASSIGN_OR_RETURN(
      ChildProcess process,
      ChildProcess::Start({"--role=clears-check", absl::StrCat("--device=", record.ordinal)}, finding.get()));
  return Check{.record = &record, .process = std::move(process), .finding = std::move(finding)};
}

ClearsFinding TakeFinding(Check& check, std::chrono::steady_clock::time_point deadline) {
  if (!check.process.WaitUntil(deadline)) {
    return ClearsNotTried(absl::StrCat("it did not end in ", kLimit.count(), " s"));
  }
  const ProcessEnd end = check.process.Reap();
  ClearsFinding finding;
  if (::pread(check.finding.get(), &finding, sizeof(finding), 0) == sizeof(finding)) return finding;
  return ClearsNotTried(absl::StrCat("it ended without a finding: ", end.ToString()));
}

}  // namespace

void RunClearsChecks(std::vector<DeviceRecord>* records) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  std::vector<Check> checks;
  for (DeviceRecord& record : *records) {
    if (record.backend == BackendKind::kHost) continue;
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
  for (Check& check : checks) check.record->clears = TakeFinding(check, deadline);
}

int RunClearsCheckRole(const Options& options) {
  if (!BecomeChild(absl::StrCat("berth-clears", options.device), options.parent).ok()) return 1;
  const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
  const ClearsFinding finding =
      driver.ok() ? CheckClears(**driver, static_cast<int>(options.device), kClearsCheckBytes)
                  : ClearsNotTried(driver.status().message());
  return ::write(kChildFd, &finding, sizeof(finding)) == sizeof(finding) ? 0 : 1;
}

}  // namespace berth
