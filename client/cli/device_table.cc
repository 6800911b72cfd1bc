#include "client/cli/device_table.h"

#include "absl/strings/str_cat.h"
#include "client/cli/format.h"
#include "client/cli/table.h"

namespace berth::cli {

namespace {

// "READY, 524 MiB"; "none" where there can be none.
std::string FormatContext(const v1::Device& device) {
  if (!device.has_context_worker()) return "none";
  const std::string& state = v1::Device::State_Name(device.context_worker().state());
  if (device.bytes().daemon() == 0) return state;
  return absl::StrCat(state, ", ", FormatCount(device.bytes().daemon()));
}

}  // namespace

std::string DeviceTable(const google::protobuf::RepeatedPtrField<v1::Device>& devices) {
  if (devices.empty()) return "no devices\n";
  Table table({{"DEVICE"},
               {"NAME"},
               {"STATE"},
               {"GENERATION", Table::Align::kRight},
               {"RESTARTS LEFT", Table::Align::kRight},
               {"TOTAL", Table::Align::kRight},
               {"BUDGET", Table::Align::kRight},
               {"OUTSTANDING", Table::Align::kRight},
               {"CONTEXT WORKER"},
               {"CLEARS"},
               {"UUID"},
               {"LAST FAILURE"}});
  for (const v1::Device& device : devices) {
    table.AddRow({absl::StrCat(device.ordinal()), device.name(), v1::Device::State_Name(device.state()),
                  absl::StrCat(device.generation()), absl::StrCat(device.restarts_left()),
                  FormatCount(device.total_bytes()), FormatCount(device.budget_bytes()),
                  FormatCount(device.bytes().outstanding()), FormatContext(device),
                  v1::Device::ClearsCheck_Name(device.clears_check()), device.uuid(), device.last_failure()});
  }
  return table.Format();
}

}  // namespace berth::cli
