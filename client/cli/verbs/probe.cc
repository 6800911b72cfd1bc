#include "client/cli/verbs/probe.h"

#include <memory>
#include <string>
#include <utility>

#include <berth/error.h>
#include <berth/probe.h>

#include "absl/strings/str_cat.h"
#include "client/cli/format.h"
#include "google/protobuf/struct.pb.h"

namespace berth::cli {
namespace {

absl::string_view HealthName(DeviceHealth health) {
  switch (health) {
    case DeviceHealth::kReady:
      break;
    case DeviceHealth::kRebuilding:
      return "REBUILDING";
    case DeviceHealth::kDraining:
      return "DRAINING";
    case DeviceHealth::kDegraded:
      return "DEGRADED";
  }
  return "READY";
}

// A host device has no compute capability.
std::string CapabilityOf(const ProbedDevice& device) {
  return device.capability.major == 0 ? "" : absl::StrCat(device.capability.major, ".", device.capability.minor);
}

std::string ForPeople(const std::string& label, const ProbedDevice& device) {
  const std::string capability = CapabilityOf(device);
  return absl::StrCat(label, " backend: device ", device.device, ", ", device.name, " (", device.uuid, ")",
                      capability.empty() ? "" : absl::StrCat(", compute capability ", capability), ", ",
                      FormatCount(device.free.count()), " of ", FormatCount(device.total.count()), " free, ",
                      HealthName(device.health), device.trouble.empty() ? "" : absl::StrCat(": ", device.trouble),
                      "; default stream synchronised\n");
}

using Fields = google::protobuf::Map<std::string, google::protobuf::Value>;

void Set(Fields& fields, const std::string& name, std::string text) {
  fields[name].set_string_value(std::move(text));
}

absl::StatusOr<std::string> AsJson(const std::string& label, const ProbedDevice& device) {
  google::protobuf::Struct json;
  Fields& fields = *json.mutable_fields();
  Set(fields, "label", label);
  fields["ordinal"].set_number_value(device.device);
  fields["local_ordinal"].set_number_value(device.local_ordinal);
  Set(fields, "uuid", device.uuid);
  Set(fields, "name", device.name);
  Set(fields, "compute_capability", CapabilityOf(device));
  fields["multiprocessors"].set_number_value(device.multiprocessors);
  // As in protobuf's JSON, 64-bit numbers are strings.
  Set(fields, "total_bytes", absl::StrCat(device.total.count()));
  Set(fields, "free_bytes", absl::StrCat(device.free.count()));
  Set(fields, "generation", absl::StrCat(device.generation));
  Set(fields, "health", std::string(HealthName(device.health)));
  Set(fields, "trouble", device.trouble);
  fields["host"].set_bool_value(device.host);
  return FormatJson(json);
}

// Formats the fault: its reason and its named values, including the label and the ordinal.
absl::StatusOr<std::string> AsJson(const absl::Status& status, const ErrorDetails& details) {
  google::protobuf::Struct json;
  Fields& error = *(*json.mutable_fields())["error"].mutable_struct_value()->mutable_fields();
  Set(error, "reason", std::string(ReasonName(details.reason)));
  Set(error, "message", std::string(status.message()));
  Fields& named_values = *error["metadata"].mutable_struct_value()->mutable_fields();
  for (const auto& [name, value] : details.metadata) Set(named_values, name, value);
  return FormatJson(json);
}

absl::Status PrintOr(const absl::StatusOr<std::string>& text) {
  if (text.ok()) Print(*text);
  return text.status();
}

ExitStatus Probe(const Globals& globals, const std::string& label, const std::string& device, bool host_devices) {
  absl::StatusOr<std::shared_ptr<Session>> session = OpenFor(globals, globals.admin);
  if (!session.ok()) return Report(session.status());
  // The name may be an ordinal, too.
  const ProbeTarget target = {.device_uuid = device};
  const auto prober = Prober::Create(*session, {.policy = DevicePolicy::kRequired, .host_devices = host_devices});
  const absl::StatusOr<OrAbsent<ProbedDevice>> probed = prober->Probe(label, target);
  if (probed.ok()) {
    const ProbedDevice& found = probed->value();
    return Report(PrintOr(globals.json ? AsJson(label, found) : ForPeople(label, found)));
  }
  if (const auto details = GetErrorDetails(probed.status()); globals.json && details.has_value()) {
    PrintOr(AsJson(probed.status(), *details)).IgnoreError();
  }
  return Report(probed.status());
}

}  // namespace

void AddProbe(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("probe", "Test a device: create a context and synchronise its stream");
  const auto label = std::make_shared<std::string>();
  const auto device = std::make_shared<std::string>();
  const auto host_devices = std::make_shared<bool>(false);
  verb.AddOption("label", label.get(), "The name with which each error starts").Required();
  verb.AddOption("--device", device.get(),
                 "The device's ordinal, UUID or unique prefix (default: the best device that this process sees)");
  verb.AddFlag("--host-devices", host_devices.get(), "Accept a device made of host memory");
  verb.SetFooter(
      "Ends with 0: the device works; 1: no device (\"LABEL backend: no CUDA runtime available\"), or the test failed\n"
      "(\"LABEL backend: failed to create CUDA context for device ORDINAL\"); 64, 69: as every command.\n"
      "With --json, standard output also has the error: {\"error\": {\"reason\", \"message\", \"metadata\"}},\n"
      "with the label and the ordinal in the metadata.");
  verb.Runs([&globals, label, device, host_devices] { return Probe(globals, *label, *device, *host_devices); });
}

}  // namespace berth::cli
