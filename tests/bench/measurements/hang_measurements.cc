// Latency of the inventory while a driver hangs: as a call, and by the command.

#include <stdio.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/inventory.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/statistics.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr int kCount = 500;
constexpr int kCommands = 200;
// A reading older than this, without a newer one, makes a device SILENT.
constexpr uint64_t kOldMs = 5'000;
constexpr absl::Duration kPatience = absl::Seconds(30);

// A node of three devices; the driver of one hangs where `hangs` is set.
absl::Status WriteNode(const std::string& path, bool hangs) {
  const std::string next = path + ".next";
  std::ofstream(next) << "refresh = \"100ms\"\n[[device]]\ncount = 3\nmemory = \"8MiB\"\n"
                      << (hangs ? "[now.1]\nhangs = true\n" : "");
  if (::rename(next.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::InternalError("rename(node file)");
}

absl::Status Await(const Inspector& inspector, v1::Condition::Health health) {
  for (const absl::Time deadline = absl::Now() + kPatience; absl::Now() < deadline;) {
    BERTH_ASSIGN_OR_RETURN(const v1::ListInventoryResponse inventory, inspector.ListInventory());
    if (inventory.devices(1).condition().health() == health) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the device did not come to what it was to be");
}

// Runs the command to its end. Errors: it failed, or did not print the age of the driver's reading.
absl::Status RunDevices(const std::string& berth, const std::string& folder) {
  BERTH_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  BERTH_ASSIGN_OR_RETURN(ChildProcess command,
                         ChildProcess::Start({.command = {berth, "--folder", folder, "devices"},
                                              .output = pipe.write.get()}));
  pipe.write.reset();
  std::string said;
  char some[4096];
  for (ssize_t read = 0; (read = ::read(pipe.read.get(), some, sizeof(some))) > 0;) said.append(some, read);
  if (const int code = command.Wait(); code != 0) return absl::InternalError(absl::StrCat("berth devices: ", code));
  if (absl::StrContains(said, " READ ") && absl::StrContains(said, " ms ")) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("berth devices does not say how old it is:\n", said));
}

// Returns the median and the p99 of `times`, in milliseconds.
std::vector<Measurement> MakeMeasurements(const std::string& what, const std::vector<double>& times) {
  return {{.name = absl::StrCat(what, " while a driver hangs, median"),
           .value = Quantile(times, 0.5),
           .unit = "ms",
           .bound = 50},
          {.name = absl::StrCat(what, " while a driver hangs, p99 of ", times.size()),
           .value = Quantile(times, 0.99),
           .unit = "ms",
           .bound = 50}};
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> HangMeasurements(const Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Make());
  const std::string node = folder.path() + "/node.toml";
  BERTH_RETURN_IF_ERROR(WriteNode(node, /*hangs=*/false));
  Programs host = programs;
  host.backend = "host";
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(host, {absl::StrCat("--host-devices-file=", node)}));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  const Inspector inspector(session);
  BERTH_RETURN_IF_ERROR(Await(inspector, v1::Condition::ANSWERS));
  BERTH_RETURN_IF_ERROR(WriteNode(node, /*hangs=*/true));
  BERTH_RETURN_IF_ERROR(Await(inspector, v1::Condition::SILENT));
  BERTH_ASSIGN_OR_RETURN(const v1::ListInventoryResponse inventory, inspector.ListInventory());
  if (inventory.devices(1).condition().age_ms() < kOldMs) return absl::InternalError("what is old is said to be new");
  std::vector<double> calls;
  for (int i = 0; i < kCount; ++i) {
    BERTH_ASSIGN_OR_RETURN(const double time,
                           Microseconds([&] { return inspector.ListInventory().status(); }));
    calls.push_back(time * 1e-3);
  }
  std::vector<double> commands;
  for (int i = 0; i < kCommands; ++i) {
    BERTH_ASSIGN_OR_RETURN(const double time,
                           Microseconds([&] { return RunDevices(programs.berth, daemon->folder()); }));
    commands.push_back(time * 1e-3);
  }
  std::vector<Measurement> measurements = MakeMeasurements("inventory", calls);
  for (Measurement& measurement : MakeMeasurements("berth devices", commands))
    measurements.push_back(std::move(measurement));
  return measurements;
}

}  // namespace berth::bench
