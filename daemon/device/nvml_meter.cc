// The meter of a device that there is, by NVML.

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/nvml.h"
#include "common/cuda/nvml_survey.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/device/device_meter.h"
#include "daemon/device/event_log.h"

namespace berth {
namespace {

// NVML's words, as nvml.h has them.
constexpr int kUninitialized = 1;
constexpr int kNotFound = 6;
constexpr int kDriverNotLoaded = 9;
constexpr int kGpuIsLost = 15;
constexpr int kResetRequired = 16;
constexpr int kVersionMismatch = 18;

// 0 where it was not NVML that refused.
int CodeOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value() || details->reason != Reason::kDriver) return 0;
  const auto code = details->metadata.find("driver_code");
  int number = 0;
  return code != details->metadata.end() && absl::SimpleAtoi(code->second, &number) ? number : 0;
}

// A device that it knows no more, that has left the bus, or that has to be reset first: its memory is nobody's any
// more. Any other error says nothing of the device.
bool IsGone(const absl::Status& status) {
  const int code = CodeOf(status);
  return code == kNotFound || code == kGpuIsLost || code == kResetRequired;
}

// The same by what it answered when it was asked for figures, for people; empty for one that is there.
std::string WhyGone(const DeviceFigures& figures) {
  for (const FigureValue& figure : figures.values) {
    if (figure.absence == FigureAbsence::kLost) return "the driver says that it is lost";
    if (figure.absence == FigureAbsence::kNeedsReset) return "the driver says that it has to be reset";
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
    // Until it is read: what was read before is not how it is.
    total_ = free_ = Absent(FigureAbsence::kNotRead);
    BERTH_ASSIGN_OR_RETURN(cuda::Nvml* const nvml, cuda::Nvml::Get());
    const absl::StatusOr<cuda::Nvml::Memory> memory = nvml->GetMemory(uuid_);
    if (!memory.ok()) {
      NoteDriver(memory.status());
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
    // Whom there is no room for has least.
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
      for (FigureValue& figure : survey.figures.values) {
        figure = CodeOf(opened) == kNotFound ? Absent(FigureAbsence::kLost) : cuda::AbsenceOf(opened);
      }
      forgiven_ = events_.total();
      events_.CopyTo(&survey);
      return survey;
    }
    survey_->Read(&survey.figures);
    survey.figures[DeviceFigure::kTotalBytes] = total_;
    survey.figures[DeviceFigure::kFreeBytes] = free_;
    bool off_the_bus = false;
    for (const cuda::NvmlSurvey::Event& event : survey_->TakeEvents()) {
      events_.Add(event.kind, event.code, survey.taken_ns);
      off_the_bus |= event.kind == DeviceEventKind::kXid && event.code == kXidOffTheBus;
    }
    events_.AddRises(survey.figures, survey.taken_ns);
    events_.CopyTo(&survey);
    ReadPeers(&survey);
    ReadInstances(&survey);
    JudgeHealth(forgiven_, &survey);
    const std::string gone = off_the_bus ? absl::StrCat("Xid ", kXidOffTheBus, ": it has fallen off the bus")
                                         : WhyGone(survey.figures);
    if (!gone.empty()) {
      survey.health = monitor::Health::kLost;
      SetTrouble(gone, &survey);
      // What comes back has passed a self-test since.
      forgiven_ = events_.total();
      // Looked for anew: a handle of before may stay lost.
      survey_.reset();
    }
    return survey;
  }

 private:
  absl::Status Open() {
    if (survey_ != nullptr) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<cuda::NvmlSurvey>> opened = cuda::NvmlSurvey::Open(uuid_);
    if (!opened.ok()) NoteDriver(opened.status());
    BERTH_ASSIGN_OR_RETURN(survey_, std::move(opened));
    return absl::OkStatus();
  }

  // The library is initialised once in a process: a driver that was loaded anew answers another process only.
  void NoteDriver(const absl::Status& refused) {
    const int code = CodeOf(refused);
    const bool of_driver = code == kUninitialized || code == kDriverNotLoaded || code == kVersionMismatch;
    past_use_ |= of_driver && cuda::Nvml::Get().ok();
  }

  // One that does not answer hides no other.
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
  // As Read() found them last.
  FigureValue total_;
  FigureValue free_;
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
