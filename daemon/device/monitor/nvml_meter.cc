// The meter of a real device, by NVML.

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <berth/error.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/nvml.h"
#include "common/cuda/nvml_survey.h"
#include "common/status_macros.h"
#include "daemon/device/monitor/device_meter.h"
#include "daemon/device/monitor/event_log.h"

namespace berth {
namespace {

// NVML's return codes, as in nvml.h.
constexpr int kUninitialized = 1;
constexpr int kNotFound = 6;
constexpr int kDriverNotLoaded = 9;
constexpr int kGpuIsLost = 15;
constexpr int kResetRequired = 16;
constexpr int kVersionMismatch = 18;

// Returns 0 for an error that is not NVML's.
int CodeOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value() || details->reason != Reason::kDriver) return 0;
  const auto code = details->metadata.find("driver_code");
  int number = 0;
  return code != details->metadata.end() && absl::SimpleAtoi(code->second, &number) ? number : 0;
}

// Returns whether the device's memory content is lost: the driver no longer knows the device, the device has left the
// bus, or it must be reset first. Any other error proves nothing about the device.
bool IsGone(const absl::Status& status) {
  const int code = CodeOf(status);
  return code == kNotFound || code == kGpuIsLost || code == kResetRequired;
}

// Returns the reason for people if the metrics show that the device is gone; empty otherwise.
std::string WhyGone(const DeviceMetrics& metrics) {
  for (const MetricValue& metric : metrics.values) {
    if (metric.absence == MetricAbsence::kLost) return "the driver reports the device as lost";
    if (metric.absence == MetricAbsence::kNeedsReset) return "the driver reports that the device needs a reset";
  }
  return "";
}

class NvmlMeter final : public DeviceMeter {
 public:
  NvmlMeter(const std::vector<DeviceRecord>& records, size_t index, pid_t daemon)
      : ordinal_(records[index].ordinal), uuid_(records[index].uuid), daemon_(daemon) {
    for (const DeviceRecord& record : records) {
      if (record.ordinal != ordinal_) peers_.emplace_back(record.ordinal, record.uuid);
    }
  }

  bool past_use() const override { return past_use_; }

  absl::StatusOr<monitor::Reading> Read() override {
    monitor::Reading reading = {.taken_ns = MonotonicNanoseconds(), .device = ordinal_};
    // Unknown until read: old values do not describe the current state.
    total_ = free_ = Absent(MetricAbsence::kNotRead);
    BERTH_ASSIGN_OR_RETURN(cuda::Nvml* const nvml, cuda::Nvml::Get());
    const absl::StatusOr<cuda::Nvml::Memory> memory = nvml->GetMemory(uuid_);
    if (!memory.ok()) {
      RecordDriver(memory.status());
      total_ = free_ = cuda::AbsenceOf(memory.status());
      return memory.status();
    }
    total_ = Known(memory->total.count());
    free_ = Known(memory->free.count());
    BERTH_ASSIGN_OR_RETURN(std::vector<cuda::Nvml::Process> processes, nvml->Processes(uuid_));
    reading.total = memory->total.count();
    reading.free = memory->free.count();
    const absl::StatusOr<uint32_t> utilisation = nvml->Utilization(uuid_);
    if (utilisation.ok()) reading.utilisation = static_cast<int32_t>(*utilisation);
    // The processes with the least memory find no place.
    std::sort(processes.begin(), processes.end(),
              [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    for (const cuda::Nvml::Process& process : processes) {
      AddProcess(static_cast<pid_t>(process.pid), process.bytes.count(), daemon_, &reading);
    }
    return reading;
  }

  monitor::Survey Survey() override {
    monitor::Survey survey = {.device = ordinal_, .taken_ns = MonotonicNanoseconds()};
    if (const absl::Status opened = Open(); !opened.ok()) {
      survey.health = IsGone(opened) ? monitor::Health::kLost : monitor::Health::kDegraded;
      SetTrouble(std::string(opened.message()), &survey);
      for (MetricValue& metric : survey.metrics.values) {
        metric = CodeOf(opened) == kNotFound ? Absent(MetricAbsence::kLost) : cuda::AbsenceOf(opened);
      }
      forgiven_ = events_.total();
      events_.CopyTo(&survey);
      return survey;
    }
    survey_->Read(&survey.metrics);
    survey.metrics[DeviceMetric::kTotalBytes] = total_;
    survey.metrics[DeviceMetric::kFreeBytes] = free_;
    bool off_the_bus = false;
    for (const cuda::NvmlSurvey::Event& event : survey_->TakeEvents()) {
      events_.Add(event.kind, event.code, survey.taken_ns);
      off_the_bus |= event.kind == DeviceEventKind::kXid && event.code == kXidOffTheBus;
    }
    events_.AddRises(survey.metrics, survey.taken_ns);
    events_.CopyTo(&survey);
    ReadPeers(&survey);
    ReadInstances(&survey);
    JudgeHealth(forgiven_, &survey);
    const std::string gone = off_the_bus ? absl::StrCat("Xid ", kXidOffTheBus, ": the device has fallen off the bus")
                                         : WhyGone(survey.metrics);
    if (!gone.empty()) {
      survey.health = monitor::Health::kLost;
      SetTrouble(gone, &survey);
      // A device that comes back later has passed a self-test.
      forgiven_ = events_.total();
      // Opens a new survey next time: the old handle may stay lost.
      survey_.reset();
    }
    return survey;
  }

 private:
  absl::Status Open() {
    if (survey_ != nullptr) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<cuda::NvmlSurvey>> opened = cuda::NvmlSurvey::Open(uuid_);
    if (!opened.ok()) RecordDriver(opened.status());
    BERTH_ASSIGN_OR_RETURN(survey_, std::move(opened));
    return absl::OkStatus();
  }

  // The library is initialised once per process: a driver that was reloaded answers only other processes.
  void RecordDriver(const absl::Status& refused) {
    const int code = CodeOf(refused);
    const bool of_driver = code == kUninitialized || code == kDriverNotLoaded || code == kVersionMismatch;
    past_use_ |= of_driver && cuda::Nvml::Get().ok();
  }

  // Adds reachability of peers; skips a peer for which the query fails.
  void ReadPeers(monitor::Survey* survey) const {
    for (const auto& [ordinal, uuid] : peers_) {
      const absl::StatusOr<cuda::NvmlSurvey::Reach> reach = survey_->ReachOf(uuid);
      if (!reach.ok()) continue;
      const uint64_t bit = uint64_t{1} << ordinal;
      survey->known_peers |= bit;
      if (reach->peer) survey->peers |= bit;
      if (reach->nvlink) survey->nvlink_peers |= bit;
    }
  }

  void ReadInstances(monitor::Survey* survey) const {
    for (const cuda::NvmlSurvey::Instance& instance : survey_->Instances()) {
      if (survey->instance_count == monitor::Survey::kMaxInstances) break;
      monitor::Instance& to = survey->instances[survey->instance_count++];
      strncpy(to.uuid, instance.uuid.c_str(), sizeof(to.uuid) - 1);
      to.multiprocessors = instance.multiprocessors;
      to.total = instance.total.count();
    }
  }

  const uint32_t ordinal_;
  const std::string uuid_;
  const pid_t daemon_;
  std::vector<std::pair<uint32_t, std::string>> peers_;
  std::unique_ptr<cuda::NvmlSurvey> survey_;
  // Values of the last Read().
  MetricValue total_;
  MetricValue free_;
  EventLog events_;
  uint64_t forgiven_ = 0;
  bool past_use_ = false;
};

}  // namespace

std::unique_ptr<DeviceMeter> NewNvmlMeter(const std::vector<DeviceRecord>& records, size_t index,
                                          pid_t daemon) {
  return std::make_unique<NvmlMeter>(records, index, daemon);
}

}  // namespace berth
