#include "daemon/device/monitor/device_meter.h"

#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace berth {
namespace {

std::string FileOf(pid_t pid, absl::string_view what) { return absl::StrCat("/proc/", pid, "/", what); }

// Returns 0 for a process that has ended.
pid_t ParentOf(pid_t pid) {
  std::ifstream file(FileOf(pid, "stat"));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The name may contain any character; the state and the parent follow its last parenthesis.
  const size_t after = text.rfind(')');
  if (after == std::string::npos) return 0;
  const std::vector<std::string> words = absl::StrSplit(text.substr(after + 1), ' ', absl::SkipEmpty());
  pid_t parent = 0;
  return words.size() > 1 && absl::SimpleAtoi(words[1], &parent) ? parent : 0;
}

}  // namespace

int64_t MonotonicNanoseconds() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

void AddProcess(pid_t pid, uint64_t bytes, pid_t daemon, monitor::Reading* reading) {
  if (reading->count == monitor::Reading::kMaxProcesses) {
    reading->rest += bytes;
    return;
  }
  monitor::ProcessReading& to = reading->processes[reading->count++];
  to = {.pid = pid, .bytes = bytes};
  struct stat status;
  if (::stat(FileOf(pid, "").c_str(), &status) == 0) to.uid = status.st_uid;
  std::string name;
  std::ifstream comm(FileOf(pid, "comm"));
  std::getline(comm, name);
  strncpy(to.name, name.c_str(), sizeof(to.name) - 1);
  pid_t ancestor = ParentOf(pid);
  to.daemon = daemon != 0 && (ancestor == daemon || pid == daemon) ? 1 : 0;
  for (int32_t& slot : to.ancestors) {
    if (ancestor <= 1) break;
    slot = ancestor;
    ancestor = ParentOf(ancestor);
  }
}

void SetTrouble(absl::string_view trouble, monitor::Survey* survey) {
  const size_t length = std::min(trouble.size(), sizeof(survey->trouble) - 1);
  std::copy_n(trouble.data(), length, survey->trouble);
  survey->trouble[length] = '\0';
}

namespace {

// Returns a failed metric if the driver answers every query for the device with an error. Returns null if some metric
// is known, or none was queried.
const MetricValue* AllFailed(const DeviceMetrics& metrics) {
  const MetricValue* failed = nullptr;
  for (const MetricValue& metric : metrics.values) {
    if (metric.known()) return nullptr;
    if (failed == nullptr && metric.absence == MetricAbsence::kFailed) failed = &metric;
  }
  return failed;
}

}  // namespace

bool IsOfAProgram(uint64_t xid) {
  // Xids of NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors) that an application alone causes and that end with
  // it. In order: bad command stream, exception in a kernel, page fault, stopped channel, the cleanup after that,
  // exception of the video decoder, context switch timeout. NVIDIA's device plugin for Kubernetes also treats a device
  // with one of these as healthy.
  constexpr uint64_t kOfPrograms[] = {11, 13, 31, 43, 45, 68, 109};
  return std::find(std::begin(kOfPrograms), std::end(kOfPrograms), xid) != std::end(kOfPrograms);
}

void JudgeHealth(uint64_t forgiven, monitor::Survey* survey) {
  const DeviceMetrics& metrics = survey->metrics;
  const MetricValue& now = metrics[DeviceMetric::kTemperature];
  const MetricValue& slow = metrics[DeviceMetric::kSlowdownTemperature];
  const MetricValue& errors = metrics[DeviceMetric::kUncorrectedErrors];
  std::string trouble;
  const auto add = [&](const std::string& text) {
    absl::StrAppend(&trouble, trouble.empty() ? "" : "; ", text);
  };
  if (const MetricValue* const failed = AllFailed(metrics); failed != nullptr) {
    add(absl::StrCat("the driver reports no metric: ", WhyAbsent(*failed)));
  }
  if (now.known() && slow.known() && now.value >= slow.value) {
    add(absl::StrCat(now.value, " degrees Celsius, throttled from ", slow.value));
  }
  if (errors.known() && errors.value > 0) {
    add(absl::StrCat(errors.value, " uncorrected memory errors"));
  }
  // The last Xid that is the device's own fault; the driver's catalogue gives its meaning.
  for (uint32_t i = survey->event_count; i > 0; --i) {
    const monitor::Event& event = survey->events[i - 1];
    if (event.number <= forgiven) break;
    if (event.kind != DeviceEventKind::kXid || IsOfAProgram(event.code)) continue;
    add(absl::StrCat("Xid ", event.code));
    break;
  }
  survey->health = trouble.empty() ? monitor::Health::kAnswers : monitor::Health::kDegraded;
  SetTrouble(trouble, survey);
}

}  // namespace berth
