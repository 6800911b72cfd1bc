// How soon the inventory is told while a driver hangs.

#include <stdio.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/inspector.h"
#include "common/status_macros.h"
#include "tests/bench/figures.h"
#include "tests/bench/statistics.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr int kCount = 500;
constexpr absl::Duration kPatience = absl::Seconds(30);

// A node of three devices; the driver of one hangs, or does not.
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

}  // namespace

absl::StatusOr<std::vector<Figure>> HangFigures(const Programs& programs) {
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
  std::vector<double> times;
  for (int i = 0; i < kCount; ++i) {
    BERTH_ASSIGN_OR_RETURN(const double time,
                           Microseconds([&] { return inspector.ListInventory().status(); }));
    times.push_back(time * 1e-3);
  }
  return std::vector<Figure>{{.name = "inventory while a driver hangs, median",
                              .value = Quantile(times, 0.5),
                              .unit = "ms",
                              .bound = 50},
                             {.name = absl::StrCat("inventory while a driver hangs, p99 of ", kCount),
                              .value = Quantile(times, 0.99),
                              .unit = "ms",
                              .bound = 50}};
}

}  // namespace berth::bench
