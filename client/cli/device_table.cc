#include "client/cli/device_table.h"

#include <cstdint>
#include <string>
#include <vector>

#include <berth/visible_devices.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/inventory.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/device_name.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "common/device_name.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// "READY, 524 MiB"; "none" if the device cannot have a context worker.
std::string FormatContext(const v1::Device& device) {
  if (!device.has_context_worker()) return "none";
  const std::string& state = v1::Device::State_Name(device.context_worker().state());
  if (device.bytes().daemon() == 0) return state;
  return absl::StrCat(state, ", ", FormatCount(device.bytes().daemon()));
}

// "41", or "-" if unknown.
std::string Number(const v1::Figure& metric, absl::string_view unit = "") {
  return metric.known_case() == v1::Figure::kValue ? absl::StrCat(metric.value(), unit) : "-";
}

std::string Amount(const v1::Figure& metric) {
  return metric.known_case() == v1::Figure::kValue ? FormatCount(metric.value()) : "-";
}

// "132 of 700 W".
std::string Power(const v1::Condition& condition) {
  if (condition.power().known_case() != v1::Figure::kValue) return "-";
  const std::string limit = condition.power_limit().known_case() == v1::Figure::kValue
                                ? absl::StrCat(" of ", condition.power_limit().value() / 1000)
                                : "";
  return absl::StrCat(condition.power().value() / 1000, limit, " W");
}

std::string Ecc(const v1::Condition& condition) {
  if (condition.ecc_mode().known_case() != v1::Figure::kValue) return "-";
  if (condition.ecc_mode().value() == 0) return "off";
  return absl::StrCat(Number(condition.corrected_errors()), " corrected, ",
                      Number(condition.uncorrected_errors()), " not");
}

// Bytes of processes outside every session; "-" if no reading exists.
std::string Others(const v1::Device& device) {
  return device.has_reading() ? FormatCount(device.reading().others_bytes()) : "-";
}

// "ANSWERS"; "-" if the daemon has not read the device.
std::string Health(const v1::Condition& condition) {
  return condition.health() == v1::Condition::HEALTH_UNSPECIFIED ? "-" : v1::Condition::Health_Name(condition.health());
}

// "838.0"; "-" if the daemon sends no score.
std::string Score(const v1::DeviceInventory& device) {
  return device.score_version() == 0 ? "-" : absl::StrFormat("%.1f", device.score());
}

std::string Age(const v1::Condition& condition) {
  return condition.has_read_time() ? absl::StrCat(condition.age_ms(), " ms") : "never read";
}

std::vector<Table::Column> DeviceColumns(bool with_age) {
  std::vector<Table::Column> columns = {{"DEVICE"},
                                        {"NAME"},
                                        {"STATE"},
                                        {"GENERATION", Table::Align::kRight},
                                        {"RESTARTS LEFT", Table::Align::kRight},
                                        {"TOTAL", Table::Align::kRight},
                                        {"BUDGET", Table::Align::kRight},
                                        {"OUTSTANDING", Table::Align::kRight},
                                        {"CONTEXT WORKER"},
                                        {"CLEARS"}};
  if (with_age) columns.push_back({"READ", Table::Align::kRight});
  for (const char* const last : {"UUID", "DRAIN REASON", "LAST FAILURE"}) columns.push_back({last});
  return columns;
}

// Includes the age of `condition`, unless it is null.
std::vector<std::string> DeviceCells(const v1::Device& device, const v1::Condition* condition) {
  std::vector<std::string> cells = {absl::StrCat(device.ordinal()),
                                    device.name(),
                                    v1::Device::State_Name(device.state()),
                                    absl::StrCat(device.generation()),
                                    absl::StrCat(device.restarts_left()),
                                    FormatCount(device.total_bytes()),
                                    FormatCount(device.budget_bytes()),
                                    FormatCount(device.bytes().outstanding()),
                                    FormatContext(device),
                                    v1::Device::ClearsCheck_Name(device.clears_check())};
  if (condition != nullptr) cells.push_back(Age(*condition));
  for (const std::string& last : {device.uuid(), device.drain_reason(), device.last_failure()}) cells.push_back(last);
  return cells;
}

std::vector<DeviceLabel> LabelsOf(const v1::ListDevicesResponse& devices) {
  std::vector<DeviceLabel> labels;
  for (const v1::Device& device : devices.devices()) labels.emplace_back(device.ordinal(), device.uuid());
  return labels;
}

}  // namespace

std::string DeviceTable(const google::protobuf::RepeatedPtrField<v1::Device>& devices) {
  if (devices.empty()) return "no devices\n";
  Table table(DeviceColumns(/*with_age=*/false));
  for (const v1::Device& device : devices) table.AddRow(DeviceCells(device, nullptr));
  return table.Format();
}

std::string DeviceTable(const v1::ListInventoryResponse& inventory) {
  if (inventory.devices().empty()) return "no devices\n";
  Table table(DeviceColumns(/*with_age=*/true));
  for (const v1::DeviceInventory& device : inventory.devices()) {
    table.AddRow(DeviceCells(device.device(), &device.condition()));
  }
  return table.Format();
}

uint64_t CountLostBlocks(const google::protobuf::RepeatedPtrField<v1::Device>& devices) {
  uint64_t lost = 0;
  for (const v1::Device& device : devices) lost += device.lost_blocks();
  return lost;
}

std::string FormatLostBlocks(const google::protobuf::RepeatedPtrField<v1::Device>& devices) {
  const uint64_t lost = CountLostBlocks(devices);
  if (lost == 0) return "";
  std::string text = absl::StrCat("\n", lost, lost == 1 ? " block is" : " blocks are", " LOST with device memory:");
  for (const v1::Device& device : devices) {
    if (device.lost_blocks() > 0) absl::StrAppend(&text, " ", device.lost_blocks(), " on device ", device.ordinal());
  }
  return absl::StrCat(text, "; `berth blocks` lists them, `berth blocks free` frees them\n");
}

std::string ReportTable(const google::protobuf::RepeatedPtrField<v1::DeviceReports>& reports, absl::Time now) {
  if (reports.empty()) return "";
  Table table({{"DEVICE"},
               {"REPORTED"},
               {"CODE", Table::Align::kRight},
               {"COUNT", Table::Align::kRight},
               {"LAST", Table::Align::kRight},
               {"UUID"}});
  for (const v1::DeviceReports& device : reports) {
    for (const v1::DeviceEvent& event : device.events()) {
      table.AddRow({absl::StrCat(device.device()), v1::DeviceEvent::Kind_Name(event.kind()),
                    event.code() == 0 ? "-" : absl::StrCat(event.code()), absl::StrCat(event.count()),
                    absl::StrCat(FormatSince(event.time(), now), " ago"), device.uuid()});
    }
  }
  return table.Format();
}

std::string HardwareTable(const v1::ListInventoryResponse& inventory) {
  if (inventory.devices().empty()) return "no devices\n";
  Table table({{"DEVICE"},
               {"NAME"},
               {"PCI"},
               {"CC"},
               {"SMS", Table::Align::kRight},
               {"SCORE", Table::Align::kRight},
               {"HEALTH"},
               {"TEMP", Table::Align::kRight},
               {"POWER", Table::Align::kRight},
               {"CLOCK", Table::Align::kRight},
               {"UTIL", Table::Align::kRight},
               {"FREE", Table::Align::kRight},
               {"OTHERS", Table::Align::kRight},
               {"TOTAL", Table::Align::kRight},
               {"ECC"},
               {"MIG"},
               {"NVLINKS", Table::Align::kRight},
               {"READ AGO", Table::Align::kRight},
               {"UUID"},
               {"TROUBLE"}});
  for (const v1::DeviceInventory& device : inventory.devices()) {
    const v1::Hardware& hardware = device.hardware();
    const v1::Condition& condition = device.condition();
    const std::string mig = !hardware.mig_parent().empty() ? absl::StrCat("of ", hardware.mig_parent())
                            : condition.mig_instances_size() > 0
                                ? absl::StrCat(condition.mig_instances_size(), " instances")
                                : Number(condition.mig_mode());
    table.AddRow({absl::StrCat(device.device().ordinal()), device.device().name(), hardware.pci_id(),
                  hardware.compute_capability() == 0 ? "" : FormatCapability(hardware.compute_capability()),
                  absl::StrCat(hardware.multiprocessors()), Score(device),
                  Health(condition), Number(condition.temperature(), " C"),
                  Power(condition), Number(condition.clock(), " MHz"), Number(condition.utilisation(), " %"),
                  Amount(condition.free_bytes()), Others(device.device()), Amount(condition.total_bytes()),
                  Ecc(condition), mig, Number(condition.nvlinks()), Age(condition), device.device().uuid(),
                  condition.trouble()});
  }
  return table.Format();
}

// ---- device_name.h -------------------------------------------------------------------------------------------

absl::StatusOr<v1::Device> FindDevice(const v1::ListDevicesResponse& devices, absl::string_view name) {
  const absl::StatusOr<uint32_t> ordinal = FindDeviceByName(LabelsOf(devices), name);
  if (!ordinal.ok()) return absl::InvalidArgumentError(ordinal.status().message());
  for (const v1::Device& device : devices.devices()) {
    if (device.ordinal() == *ordinal) return device;
  }
  return absl::InternalError("the device is no longer in the daemon's list");
}

absl::StatusOr<v1::Device> FindDevice(const Inspector& inspector, absl::string_view name) {
  BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, inspector.ListDevices());
  return FindDevice(devices, name);
}

absl::Status RetainVisible(v1::ListDevicesResponse* devices) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceLabel> among, DevicesAmong(LabelsOf(*devices), {}, VisibleDevices()));
  v1::ListDevicesResponse visible;
  for (const v1::Device& device : devices->devices()) {
    const auto is = [&](const DeviceLabel& label) { return label.first == device.ordinal(); };
    if (absl::c_any_of(among, is)) *visible.add_devices() = device;
  }
  devices->mutable_devices()->Swap(visible.mutable_devices());
  return absl::OkStatus();
}

}  // namespace berth::cli
