#include "daemon/device/monitor/node_script.h"

#include <algorithm>
#include <array>
#include <utility>

#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/time_span.h"
#include "daemon/base/toml.h"

namespace berth {
namespace {

// Names of the fields of berth.v1.Condition.
constexpr std::array<absl::string_view, kDeviceMetrics> kMetricNames = {"temperature",
                                                                        "slowdown_temperature",
                                                                        "power",
                                                                        "power_limit",
                                                                        "clock",
                                                                        "max_clock",
                                                                        "memory_clock",
                                                                        "utilisation",
                                                                        "memory_utilisation",
                                                                        "total_bytes",
                                                                        "free_bytes",
                                                                        "ecc_mode",
                                                                        "corrected_errors",
                                                                        "uncorrected_errors",
                                                                        "mig_mode",
                                                                        "nvlinks"};

// Parses "MAJOR.MINOR".
absl::StatusOr<uint32_t> ParseCapability(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '.');
  uint32_t major = 0, minor = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &major) || !absl::SimpleAtoi(parts[1], &minor) ||
      minor > 9 || major > 99) {
    return absl::InvalidArgumentError("a compute capability such as \"9.0\"");
  }
  return 10 * major + minor;
}

class ScriptReader {
 public:
  ScriptReader(const std::string& path, const toml::table& root) : path_(path), root_(root) {}

  absl::StatusOr<NodeScript> Read() {
    for (const auto& [key, node] : root_) {
      if (key.str() != "refresh" && key.str() != "device" && key.str() != "now") {
        return Unknown(node, std::string(key.str()));
      }
    }
    BERTH_RETURN_IF_ERROR(ReadRefresh());
    const toml::node* const devices = root_.get("device");
    if (devices == nullptr || !devices->is_array_of_tables()) {
      return Bad(devices == nullptr ? root_ : *devices, "device", "[[device]] tables");
    }
    for (const toml::node& node : *devices->as_array()) BERTH_RETURN_IF_ERROR(AddDevices(*node.as_table()));
    BERTH_RETURN_IF_ERROR(ReadNow());
    return std::move(script_);
  }

 private:
  absl::Status Bad(const toml::node& node, absl::string_view key, absl::string_view expected) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ":", node.source().begin.line, ": ", key, ": expected ", expected));
  }
  absl::Status Unknown(const toml::node& node, absl::string_view key) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ":", node.source().begin.line, ": ", key,
                                                   ": unknown key; docs/guides/simulated_nodes.md lists the keys"));
  }

  absl::Status ReadRefresh() {
    const toml::node* const node = root_.get("refresh");
    if (node == nullptr) return absl::OkStatus();
    const absl::StatusOr<absl::Duration> refresh = ParseTimeSpan(node->value_or<std::string>(""));
    if (!refresh.ok() || *refresh < absl::Milliseconds(1) || *refresh > absl::Hours(1)) {
      return Bad(*node, "refresh", "a time such as \"20ms\"");
    }
    script_.refresh = *refresh;
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Number(const toml::node& node, absl::string_view key, uint64_t least,
                                  uint64_t most) const {
    const std::optional<int64_t> value = node.is_integer() ? node.value<int64_t>() : std::nullopt;
    if (!value.has_value() || *value < 0 || static_cast<uint64_t>(*value) < least ||
        static_cast<uint64_t>(*value) > most) {
      return Bad(node, key, absl::StrCat("a whole number from ", least, " to ", most));
    }
    return static_cast<uint64_t>(*value);
  }

  absl::StatusOr<Bytes> Amount(const toml::node& node, absl::string_view key) const {
    const absl::StatusOr<Bytes> bytes = ParseBytes(node.value_or<std::string>(""));
    if (!bytes.ok()) return Bad(node, key, "an amount such as \"64MiB\"");
    return *bytes;
  }

  absl::StatusOr<std::string> Text(const toml::node& node, absl::string_view key, size_t most) const {
    std::string text = node.value_or<std::string>("");
    if (text.empty() || text.size() > most) return Bad(node, key, absl::StrCat("at most ", most, " bytes"));
    return text;
  }

  absl::StatusOr<MetricValue> Value(const toml::node& node, DeviceMetric metric) const {
    if (node.is_string()) {
      const std::string text = node.value_or<std::string>("");
      if (text == "not supported") return Absent(MetricAbsence::kNotSupported);
      if (text == "not permitted") return Absent(MetricAbsence::kNotPermitted);
      if (metric == DeviceMetric::kFreeBytes || metric == DeviceMetric::kTotalBytes) {
        BERTH_ASSIGN_OR_RETURN(const Bytes bytes, Amount(node, "free_bytes"));
        return Known(bytes.count());
      }
      return Bad(node, kMetricNames[static_cast<size_t>(metric)], "a number or \"not supported\"");
    }
    BERTH_ASSIGN_OR_RETURN(const uint64_t value,
                           Number(node, kMetricNames[static_cast<size_t>(metric)], 0, INT64_MAX));
    return Known(value);
  }

  absl::StatusOr<bool> Flag(const toml::node& node, absl::string_view key) const {
    const std::optional<bool> value = node.value_exact<bool>();
    if (!value.has_value()) return Bad(node, key, "true or false");
    return *value;
  }

  // Reads a key that describes a device's state. Returns whether the key is one.
  absl::StatusOr<bool> TakeState(const std::string& key, const toml::node& node, ScriptedDevice* to) const {
    const auto metric = std::find(kMetricNames.begin(), kMetricNames.end(), key);
    if (metric != kMetricNames.end()) {
      const auto which = static_cast<DeviceMetric>(metric - kMetricNames.begin());
      BERTH_ASSIGN_OR_RETURN(to->metrics[which], Value(node, which));
    } else if (key == "lost") {
      BERTH_ASSIGN_OR_RETURN(to->lost, Flag(node, key));
    } else if (key == "hangs") {
      BERTH_ASSIGN_OR_RETURN(to->hangs, Flag(node, key));
    } else if (key == "fails_self_test") {
      BERTH_ASSIGN_OR_RETURN(to->fails_self_test, Text(node, key, 128));
    } else if (key == "xids") {
      if (!node.is_array()) return Bad(node, key, "a list of numbers");
      to->xids.clear();
      for (const toml::node& xid : *node.as_array()) {
        BERTH_ASSIGN_OR_RETURN(to->xids.emplace_back(), Number(xid, key, 1, 1'000'000));
      }
    } else if (key == "processes") {
      BERTH_RETURN_IF_ERROR(TakeProcesses(node, to));
    } else {
      return false;
    }
    return true;
  }

  absl::Status TakeProcesses(const toml::node& node, ScriptedDevice* to) const {
    if (!node.is_array()) return Bad(node, "processes", "a list of {pid, bytes}");
    to->processes.clear();
    for (const toml::node& one : *node.as_array()) {
      const toml::table* const process = one.as_table();
      if (process == nullptr || process->get("pid") == nullptr || process->get("bytes") == nullptr) {
        return Bad(one, "processes", "{pid, bytes}");
      }
      BERTH_ASSIGN_OR_RETURN(const uint64_t pid, Number(*process->get("pid"), "pid", 1, INT32_MAX));
      BERTH_ASSIGN_OR_RETURN(const Bytes bytes, Amount(*process->get("bytes"), "bytes"));
      to->processes.push_back({.pid = static_cast<int32_t>(pid), .bytes = bytes});
    }
    return absl::OkStatus();
  }

  // Reads a key that describes a device's constant property. Returns whether the key is one.
  absl::StatusOr<bool> TakeFact(const std::string& key, const toml::node& node, ScriptedDevice* to) const {
    const auto number = [&](uint64_t most) { return Number(node, key, 0, most); };
    if (key == "name") {
      BERTH_ASSIGN_OR_RETURN(to->name, Text(node, key, 95));
    } else if (key == "capability") {
      const absl::StatusOr<uint32_t> capability = ParseCapability(node.value_or<std::string>(""));
      if (!capability.ok()) return Bad(node, key, std::string(capability.status().message()));
      to->compute_capability = *capability;
    } else if (key == "multiprocessors") {
      BERTH_ASSIGN_OR_RETURN(to->multiprocessors, number(UINT32_MAX));
    } else if (key == "threads_per_multiprocessor") {
      BERTH_ASSIGN_OR_RETURN(to->threads_per_multiprocessor, number(UINT32_MAX));
    } else if (key == "shared_bytes_per_block") {
      BERTH_ASSIGN_OR_RETURN(to->shared_bytes_per_block, number(INT64_MAX));
    } else if (key == "l2_bytes") {
      BERTH_ASSIGN_OR_RETURN(to->l2_bytes, number(INT64_MAX));
    } else if (key == "memory") {
      BERTH_ASSIGN_OR_RETURN(to->memory, Amount(node, key));
    } else if (key == "island") {
      BERTH_ASSIGN_OR_RETURN(to->island, number(UINT32_MAX));
    } else {
      return false;
    }
    return true;
  }

  absl::Status AddDevices(const toml::table& table) {
    uint64_t count = 1, slices = 0;
    std::string uuid;
    ScriptedDevice device{.name = "simulated device"};
    for (const auto& [name, node] : table) {
      const std::string key(name.str());
      if (key == "count") {
        BERTH_ASSIGN_OR_RETURN(count, Number(node, key, 1, kMaxDeviceOrdinals));
      } else if (key == "slices") {
        BERTH_ASSIGN_OR_RETURN(slices, Number(node, key, 1, kMaxDeviceOrdinals));
      } else if (key == "uuid") {
        BERTH_ASSIGN_OR_RETURN(uuid, Text(node, key, 48));
      } else {
        BERTH_ASSIGN_OR_RETURN(const bool fact, TakeFact(key, node, &device));
        if (fact) continue;
        BERTH_ASSIGN_OR_RETURN(const bool state, TakeState(key, node, &device));
        if (!state) return Unknown(node, absl::StrCat("device.", key));
      }
    }
    for (uint64_t i = 0; i < count; ++i) {
      device.uuid = uuid.empty() ? absl::StrCat("SIM-", script_.devices.size())
                    : count > 1  ? absl::StrCat(uuid, "-", i)
                                 : uuid;
      if (slices == 0) {
        script_.devices.push_back(device);
      } else {
        AddSlices(device, slices);
      }
    }
    if (script_.devices.size() > kMaxDeviceOrdinals) {
      return Bad(table, "device", absl::StrCat("at most ", kMaxDeviceOrdinals, " devices in total"));
    }
    return absl::OkStatus();
  }

  void AddSlices(const ScriptedDevice& whole, uint64_t slices) {
    ScriptedDevice slice = whole;
    slice.mig_parent = whole.uuid;
    slice.name = absl::StrCat(whole.name, " MIG 1/", slices);
    slice.multiprocessors = static_cast<uint32_t>(whole.multiprocessors / slices);
    if (whole.memory.has_value()) slice.memory = Bytes(whole.memory->count() / slices);
    // MIG instances have no NVLink peers.
    slice.island.reset();
    for (uint64_t i = 0; i < slices; ++i) {
      slice.uuid = absl::StrCat("MIG-", whole.uuid, "-", i);
      script_.devices.push_back(slice);
    }
  }

  absl::Status ReadNow() {
    const toml::node* const now = root_.get("now");
    if (now == nullptr) return absl::OkStatus();
    if (!now->is_table()) return Bad(*now, "now", "tables by ordinal");
    for (const auto& [name, node] : *now->as_table()) {
      const std::string prefix = absl::StrCat("now.", std::string(name.str()));
      uint32_t ordinal = 0;
      if (!absl::SimpleAtoi(std::string(name.str()), &ordinal) || ordinal >= script_.devices.size()) {
        return Bad(node, prefix, "the ordinal of a device of this file");
      }
      if (!node.is_table()) return Bad(node, prefix, "a table");
      for (const auto& [key, value] : *node.as_table()) {
        BERTH_ASSIGN_OR_RETURN(const bool taken,
                               TakeState(std::string(key.str()), value, &script_.devices[ordinal]));
        if (!taken) return Unknown(value, absl::StrCat(prefix, ".", std::string(key.str())));
      }
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  const toml::table& root_;
  NodeScript script_;
};

}  // namespace

uint64_t NodeScript::NvlinkPeersOf(uint32_t ordinal) const {
  const std::optional<uint32_t> island = devices.at(ordinal).island;
  uint64_t peers = 0;
  for (uint32_t i = 0; island.has_value() && i < devices.size(); ++i) {
    if (i != ordinal && devices[i].island == island) peers |= uint64_t{1} << i;
  }
  return peers;
}

absl::StatusOr<NodeScript> ReadNodeScript(const std::string& path) {
  BERTH_ASSIGN_OR_RETURN(const toml::table root, ReadToml(path));
  return ScriptReader(path, root).Read();
}

}  // namespace berth
