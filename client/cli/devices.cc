#include "absl/strings/str_cat.h"
#include "client/cli/device_table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {

void AddDevices(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand("devices", "Show devices, their state and budget");
  verb->callback([&globals, chosen] {
    *chosen = [&globals] {
      return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse answer, inspector.ListDevices());
        return Show(globals, answer, [&] { return DeviceTable(answer); });
      });
    };
  });
}

}  // namespace berth::cli
