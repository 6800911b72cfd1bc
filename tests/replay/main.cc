// replay_log: replays a recorded log against a backend. See tests/replay/replay.h.
//
//   replay_log --backend=host|vmm|direct [--ordinal=N] [--device=N] [--bytes=N] < memory.jsonl

#include <stdio.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"
#include "daemon/device/memory/direct_backend.h"
#include "daemon/device/memory/host_backend.h"
#include "daemon/device/memory/vmm_backend.h"
#include "tests/replay/replay.h"

namespace berth::replay {
namespace {

absl::StatusOr<std::unique_ptr<MemoryResource>> Open(const std::string& backend, int ordinal, Bytes bytes) {
  if (backend == "host") return std::make_unique<HostBackend>("HOST-0", bytes);
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  if (backend == "direct") return DirectBackend::Open(*driver, ordinal);
  return VmmBackend::Open(*driver, ordinal);
}

// Formats "p50 3.2us, p99 17us, max 40us".
std::string Spread(std::vector<absl::Duration> times) {
  if (times.empty()) return "none";
  std::sort(times.begin(), times.end());
  const auto at = [&](size_t percent) {
    return absl::FormatDuration(times[(times.size() - 1) * percent / 100]);
  };
  return "p50 " + at(50) + ", p99 " + at(99) + ", max " + at(100);
}

void Print(const Result& result) {
  ::printf("%llu records, %llu missing\n", static_cast<unsigned long long>(result.records),
           static_cast<unsigned long long>(result.missing));
  ::printf("allocated %llu (%s), refused %llu\n", static_cast<unsigned long long>(result.allocations),
           Spread(result.allocate_times).c_str(), static_cast<unsigned long long>(result.failed_allocations));
  ::printf("given back %llu (%s), refused %llu, unknown %llu\n",
           static_cast<unsigned long long>(result.releases), Spread(result.release_times).c_str(),
           static_cast<unsigned long long>(result.failed_releases),
           static_cast<unsigned long long>(result.unknown_releases));
  ::printf("peak %llu bytes, left %llu\n", static_cast<unsigned long long>(result.peak.count()),
           static_cast<unsigned long long>(result.left.count()));
  for (const std::string& failure : result.failures) ::printf("%s\n", failure.c_str());
}

int Main(int argc, char** argv) {
  CLI::App app("Runs a log of a node's memory, read from the standard input, against a backend");
  std::string backend = "host";
  int ordinal = 0;
  uint32_t device = 0;
  uint64_t bytes = uint64_t{64} << 30;
  app.add_option("--backend", backend, "host, vmm or direct")
      ->check(CLI::IsMember({"host", "vmm", "direct"}));
  app.add_option("--ordinal", ordinal, "CUDA's device to run on");
  app.add_option("--device", device, "The ordinal of the log's device");
  app.add_option("--bytes", bytes, "What the host's device has");
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<std::unique_ptr<MemoryResource>> resource = Open(backend, ordinal, Bytes(bytes));
  const absl::StatusOr<Result> result =
      resource.ok() ? Replay(std::cin, device, **resource) : absl::StatusOr<Result>(resource.status());
  if (!result.ok()) {
    ::fprintf(stderr, "%s\n", std::string(result.status().message()).c_str());
    return 1;
  }
  Print(*result);
  return result->failed_allocations + result->failed_releases == 0 ? 0 : 2;
}

}  // namespace
}  // namespace berth::replay

int main(int argc, char** argv) { return berth::replay::Main(argc, argv); }
