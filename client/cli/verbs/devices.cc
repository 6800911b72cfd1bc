#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/inventory.pb.h"
#include "client/cli/device_table.h"
#include "client/cli/format.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Prints the devices now and after each change, until the reader closes the output. Prints tables separated by an empty
// line, or one JSON object per line.
absl::Status Watch(const Globals& globals, const Inspector& inspector) {
  absl::Status shown;
  bool first = true;
  const absl::Status watched = inspector.WatchDevices([&](const v1::WatchDevicesResponse& answer) {
    const absl::StatusOr<std::string> text =
        globals.json ? FormatJsonLine(answer)
                     : absl::StrCat(first ? "" : "\n", DeviceTable(answer.devices()),
                                    ReportTable(answer.reports(), absl::Now()));
    first = false;
    shown = text.status();
    if (!shown.ok()) return false;
    return Print(*text) && FlushOutput();
  });
  BERTH_RETURN_IF_ERROR(shown);
  return watched;
}

}  // namespace

void AddDevices(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("devices", "Show devices, their state and budget");
  const auto watch = std::make_shared<bool>(false);
  const auto hardware = std::make_shared<bool>(false);
  const Option watched =
      verb.AddFlag("--watch", watch.get(), "Show the devices again after each change, except changes of bytes alone");
  verb.AddFlag("--hardware", hardware.get(), "Show hardware and health from the last NVML sample").Excludes(watched);
  verb.Runs([&globals, watch, hardware] {
    return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
      if (*watch) {
        return Follow(inspector, [&](const Inspector& followed) { return Watch(globals, followed); });
      }
      if (*hardware) {
        BERTH_ASSIGN_OR_RETURN(const v1::ListInventoryResponse answer, inspector.ListInventory());
        return Show(globals, answer, [&] { return HardwareTable(answer); });
      }
      if (globals.json) {
        BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse answer, inspector.ListDevices());
        return Show(globals, answer, [] { return std::string(); });
      }
      BERTH_ASSIGN_OR_RETURN(const v1::ListInventoryResponse answer, inspector.ListInventory());
      return Show(globals, answer, [&] { return DeviceTable(answer); });
    });
  });
}

}  // namespace berth::cli
