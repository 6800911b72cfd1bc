// The meter of a simulated device, by a file.

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/device/monitor/device_meter.h"
#include "daemon/device/monitor/event_log.h"
#include "daemon/device/monitor/node_script.h"

namespace berth {
namespace {

class ScriptedMeter final : public DeviceMeter {
 public:
  ScriptedMeter(std::string path, uint32_t ordinal, Bytes total, pid_t daemon)
      : path_(std::move(path)), ordinal_(ordinal), total_(total), daemon_(daemon) {}

  absl::Duration interval() const override { return interval_; }

  absl::StatusOr<monitor::Reading> Read() override {
    BERTH_ASSIGN_OR_RETURN(const ScriptedDevice device, Look());
    const MetricValue& free = device.metrics[DeviceMetric::kFreeBytes];
    if (device.lost || !free.known()) return absl::UnavailableError("the device file has no free bytes for the device");
    monitor::Reading reading = {.taken_ns = MonotonicNanoseconds(),
                                .total = device.memory.value_or(total_).count(),
                                .free = free.value,
                                .device = ordinal_};
    const MetricValue& utilisation = device.metrics[DeviceMetric::kUtilisation];
    if (utilisation.known()) reading.utilisation = static_cast<int32_t>(utilisation.value);
    for (const ScriptedDevice::Process& process : device.processes) {
      AddProcess(process.pid, process.bytes.count(), daemon_, &reading);
    }
    return reading;
  }

  monitor::Survey Survey() override {
    const absl::StatusOr<ScriptedDevice> device = Look();
    monitor::Survey survey = {.device = ordinal_, .taken_ns = MonotonicNanoseconds()};
    if (!device.ok()) {
      survey.health = monitor::Health::kDegraded;
      SetTrouble(device.status().message(), &survey);
      return survey;
    }
    survey.metrics = device->metrics;
    MetricValue& total = survey.metrics[DeviceMetric::kTotalBytes];
    if (!total.known()) total = Known(device->memory.value_or(total_).count());
    // Xids added since the last survey.
    for (; seen_xids_ < device->xids.size(); ++seen_xids_) {
      events_.Add(DeviceEventKind::kXid, device->xids[seen_xids_], survey.taken_ns);
    }
    events_.AddRises(survey.metrics, survey.taken_ns);
    events_.CopyTo(&survey);
    survey.nvlink_peers = survey.peers = nvlink_peers_;
    survey.known_peers = ~uint64_t{0};
    JudgeHealth(forgiven_, &survey);
    const bool off_the_bus = !device->xids.empty() && device->xids.back() == kXidOffTheBus;
    if (!device->lost && !off_the_bus) return survey;
    survey.health = monitor::Health::kLost;
    forgiven_ = events_.total();
    for (MetricValue& metric : survey.metrics.values) metric = Absent(MetricAbsence::kLost);
    SetTrouble(off_the_bus ? absl::StrCat("Xid ", kXidOffTheBus, ": the device has fallen off the bus")
                           : "the driver reports the device as lost",
               &survey);
    return survey;
  }

 private:
  absl::StatusOr<ScriptedDevice> Look() {
    struct stat now = {};
    // A file that was replaced by rename has another inode.
    if (::stat(path_.c_str(), &now) == 0 && now.st_ino == seen_.st_ino && now.st_size == seen_.st_size &&
        now.st_mtim.tv_sec == seen_.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen_.st_mtim.tv_nsec) {
      return device_;
    }
    seen_ = now;
    device_ = ReadDevice();
    return device_;
  }

  absl::StatusOr<ScriptedDevice> ReadDevice() {
    BERTH_ASSIGN_OR_RETURN(NodeScript script, ReadNodeScript(path_));
    interval_ = script.refresh;
    if (ordinal_ >= script.devices.size()) {
      return absl::UnavailableError(absl::StrCat(path_, " does not describe device ", ordinal_));
    }
    // Simulates a call that never returns: only the process's end ends it.
    while (script.devices[ordinal_].hangs) ::pause();
    nvlink_peers_ = script.NvlinkPeersOf(ordinal_);
    return std::move(script.devices[ordinal_]);
  }

  const std::string path_;
  const uint32_t ordinal_;
  const Bytes total_;
  const pid_t daemon_;
  absl::Duration interval_ = absl::Milliseconds(20);
  // The file's last status, and the device that it described.
  struct stat seen_ = {};
  absl::StatusOr<ScriptedDevice> device_ = absl::UnknownError("not read");
  size_t seen_xids_ = 0;
  uint64_t nvlink_peers_ = 0;
  EventLog events_;
  // Number of the last ignored event: a device that comes back after a loss has passed a self-test.
  uint64_t forgiven_ = 0;
};

}  // namespace

std::unique_ptr<DeviceMeter> NewScriptedMeter(std::string path, uint32_t ordinal, Bytes total, pid_t daemon) {
  return std::make_unique<ScriptedMeter>(std::move(path), ordinal, total, daemon);
}

}  // namespace berth
