#include "daemon/device/device_meter.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/os_error.h"
#include "common/status_macros.h"

namespace berth {
namespace {

std::string FileOf(pid_t pid, absl::string_view what) { return absl::StrCat("/proc/", pid, "/", what); }

// 0 for a process that is gone.
pid_t ParentOf(pid_t pid) {
  std::ifstream file(FileOf(pid, "stat"));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The name may hold anything; what follows its last parenthesis are the state and the parent.
  const size_t after = text.rfind(')');
  if (after == std::string::npos) return 0;
  const std::vector<std::string> words = absl::StrSplit(text.substr(after + 1), ' ', absl::SkipEmpty());
  pid_t parent = 0;
  return words.size() > 1 && absl::SimpleAtoi(words[1], &parent) ? parent : 0;
}

void AddProcess(pid_t pid, uint64_t bytes, pid_t daemon, worker::Reading* reading) {
  if (reading->count == worker::Reading::kMaxProcesses) {
    reading->rest += bytes;
    return;
  }
  worker::ProcessReading& to = reading->processes[reading->count++];
  to = {.pid = pid, .bytes = bytes};
  struct stat status;
  if (::stat(FileOf(pid, "").c_str(), &status) == 0) to.uid = status.st_uid;
  std::string name;
  std::getline(std::ifstream(FileOf(pid, "comm")), name);
  strncpy(to.name, name.c_str(), sizeof(to.name) - 1);
  pid_t ancestor = ParentOf(pid);
  to.daemon = daemon != 0 && (ancestor == daemon || pid == daemon) ? 1 : 0;
  for (int32_t& slot : to.ancestors) {
    if (ancestor <= 1) break;
    slot = ancestor;
    ancestor = ParentOf(ancestor);
  }
}

worker::Reading Begin() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return {.taken_ns = now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec};
}

class NvmlMeter final : public DeviceMeter {
 public:
  NvmlMeter(cuda::Nvml* nvml, std::string uuid, pid_t daemon)
      : nvml_(*nvml), uuid_(std::move(uuid)), daemon_(daemon) {}

  absl::StatusOr<worker::Reading> Read() override {
    worker::Reading reading = Begin();
    BERTH_ASSIGN_OR_RETURN(const cuda::Nvml::Memory memory, nvml_.GetMemory(uuid_));
    BERTH_ASSIGN_OR_RETURN(std::vector<cuda::Nvml::Process> processes, nvml_.Processes(uuid_));
    reading.total = memory.total.count();
    reading.free = memory.free.count();
    const absl::StatusOr<uint32_t> utilisation = nvml_.Utilization(uuid_);
    if (utilisation.ok()) reading.utilisation = static_cast<int32_t>(*utilisation);
    // Whom there is no room for has least.
    std::sort(processes.begin(), processes.end(),
              [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    for (const cuda::Nvml::Process& process : processes) {
      AddProcess(static_cast<pid_t>(process.pid), process.bytes.count(), daemon_, &reading);
    }
    return reading;
  }

 private:
  cuda::Nvml& nvml_;
  const std::string uuid_;
  const pid_t daemon_;
};

class ScriptedMeter final : public DeviceMeter {
 public:
  ScriptedMeter(std::string path, uint32_t ordinal, pid_t daemon)
      : path_(std::move(path)), ordinal_(ordinal), daemon_(daemon) {}

  absl::Duration interval() const override { return absl::Milliseconds(20); }

  absl::StatusOr<worker::Reading> Read() override {
    worker::Reading reading = Begin();
    std::ifstream file(path_);
    std::string line;
    bool known = false;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      uint32_t ordinal = 0;
      std::string what;
      if (!(words >> ordinal >> what) || ordinal != ordinal_) continue;
      if (what == "memory" && words >> reading.total >> reading.free) {
        known = true;
      } else if (what == "utilisation") {
        words >> reading.utilisation;
      } else if (what == "process") {
        pid_t pid = 0;
        uint64_t bytes = 0;
        if (words >> pid >> bytes) AddProcess(pid, bytes, daemon_, &reading);
      }
    }
    if (!known) return absl::UnavailableError(absl::StrCat(path_, " says nothing of the device"));
    return reading;
  }

 private:
  const std::string path_;
  const uint32_t ordinal_;
  const pid_t daemon_;
};

}  // namespace

std::unique_ptr<DeviceMeter> NewNvmlMeter(cuda::Nvml* nvml, std::string uuid, pid_t daemon) {
  return std::make_unique<NvmlMeter>(nvml, std::move(uuid), daemon);
}

std::unique_ptr<DeviceMeter> NewScriptedMeter(std::string path, uint32_t ordinal, pid_t daemon) {
  return std::make_unique<ScriptedMeter>(std::move(path), ordinal, daemon);
}

absl::StatusOr<std::unique_ptr<MeterLoop>> MeterLoop::Start(int socket, std::unique_ptr<DeviceMeter> meter) {
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return OsError("eventfd", errno);
  std::unique_ptr<MeterLoop> loop(new MeterLoop(socket, std::move(meter), std::move(stop)));
  loop->thread_ = std::thread([raw = loop.get()] { raw->Run(); });
  return loop;
}

MeterLoop::MeterLoop(int socket, std::unique_ptr<DeviceMeter> meter, UniqueFd stop)
    : socket_(socket), meter_(std::move(meter)), stop_(std::move(stop)) {}

MeterLoop::~MeterLoop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void MeterLoop::Run() {
  pollfd stop = {.fd = stop_.get(), .events = POLLIN, .revents = 0};
  const int pause = static_cast<int>(absl::ToInt64Milliseconds(meter_->interval()));
  do {
    const absl::StatusOr<worker::Reading> reading = meter_->Read();
    if (!reading.ok()) continue;
    // A full socket belongs to a broker that is late, or gone: the next reading says more than this one.
    ::send(socket_, &*reading, worker::Reading::BytesOf(reading->count), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (::poll(&stop, 1, pause) == 0);
}

}  // namespace berth
