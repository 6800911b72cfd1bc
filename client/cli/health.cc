#include <stdio.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/device_table.h"
#include "client/cli/format.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// What its operator wants empty is not sick.
bool IsSick(const v1::Device& device) {
  return device.state() != v1::Device::READY && device.state() != v1::Device::DRAINING;
}

// Fails the verb when a device does not serve; a daemon that does not answer has failed it before.
absl::Status Look(const Globals& globals, const Inspector& inspector) {
  BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
  BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, inspector.ListDevices());
  const auto sick = std::count_if(devices.devices().begin(), devices.devices().end(), IsSick);
  const auto drained =
      std::count_if(devices.devices().begin(), devices.devices().end(),
                    [](const v1::Device& device) { return device.state() == v1::Device::DRAINING; });
  if (globals.json) {
    BERTH_ASSIGN_OR_RETURN(const std::string json, FormatJson({{"node", &node}, {"devices", &devices}}));
    ::fputs(json.c_str(), stdout);
  } else if (sick == 0 && node.ledger_fault().empty()) {
    const std::string aside = drained > 0 ? absl::StrCat(", ", drained, " drained") : "";
    ::printf("healthy: Berth %s serves for %s, %d of %d devices ready%s\n", node.version().c_str(),
             FormatSince(node.serve_time(), absl::Now()).c_str(),
             static_cast<int>(devices.devices_size() - drained), devices.devices_size(), aside.c_str());
  } else {
    ::fputs(DeviceTable(devices.devices()).c_str(), stdout);
  }
  if (!globals.json) ::fputs(FormatPressure(node.pressure()).c_str(), stdout);
  if (!node.ledger_fault().empty()) return absl::FailedPreconditionError(node.ledger_fault());
  if (sick == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(sick, " of ", devices.devices_size(), " devices do not serve"));
}

}  // namespace

void AddHealth(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand(
      "health", "Say whether the daemon and its devices serve: 0 yes, 1 a device not, 69 nobody answers");
  verb->callback([&globals, chosen] {
    *chosen = [&globals] {
      return LookAtNode(globals, [&](const Inspector& inspector) { return Look(globals, inspector); });
    };
  });
}

}  // namespace berth::cli
