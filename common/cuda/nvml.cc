#include "common/cuda/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <utility>

#include <berth/error.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status_macros.h"

namespace berth::cuda {
namespace {

// Declarations of NVML, as in nvml.h of the toolkit.
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInsufficientSize = 7;
constexpr uint64_t kValueNotAvailable = UINT64_MAX;
using Device = struct nvmlDevice_st*;

struct MemoryV1 {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct UtilizationRates {
  unsigned int gpu;
  unsigned int memory;
};

struct ProcessInfoV3 {
  unsigned int pid;
  unsigned long long used_gpu_memory;
  unsigned int gpu_instance_id;
  unsigned int compute_instance_id;
};

absl::Status Absent(absl::string_view why) {
  return Refuse(Reason::kUnsupported, "no {capability}: {why}", {{"capability", "NVML"}, {"why", why}});
}

class LoadedNvml : public Nvml {
 public:
  static absl::StatusOr<std::unique_ptr<Nvml>> Load() {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return Absent(::dlerror());
    auto nvml = std::unique_ptr<LoadedNvml>(new LoadedNvml);
    Result (*init)() = nullptr;
    if (!Find(library, "nvmlInit_v2", &init) || !Find(library, "nvmlErrorString", &nvml->error_string_) ||
        !Find(library, "nvmlDeviceGetCount_v2", &nvml->get_count_) ||
        !Find(library, "nvmlDeviceGetHandleByIndex_v2", &nvml->by_index_) ||
        !Find(library, "nvmlDeviceGetHandleByUUID", &nvml->by_uuid_) ||
        !Find(library, "nvmlDeviceGetIndex", &nvml->get_index_) ||
        !Find(library, "nvmlDeviceGetUUID", &nvml->get_uuid_) ||
        !Find(library, "nvmlDeviceGetName", &nvml->get_name_) ||
        !Find(library, "nvmlDeviceGetMemoryInfo", &nvml->get_memory_) ||
        !Find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml->get_processes_)) {
      return Absent("libnvidia-ml.so.1 is too old");
    }
    // These two functions may be missing.
    Find(library, "nvmlDeviceGetUtilizationRates", &nvml->get_utilization_);
    Find(library, "nvmlDeviceGetGraphicsRunningProcesses_v3", &nvml->get_graphics_);
    if (const Result result = init(); result != kSuccess) return nvml->Error("nvmlInit", result);
    return nvml;
  }

  absl::StatusOr<std::vector<std::string>> Uuids() override {
    unsigned int count = 0;
    if (const Result result = get_count_(&count); result != kSuccess)
      return Error("nvmlDeviceGetCount", result);
    std::vector<std::string> uuids;
    for (unsigned int i = 0; i < count; ++i) {
      Device device = nullptr;
      char uuid[96] = {};
      if (by_index_(i, &device) != kSuccess || get_uuid_(device, uuid, sizeof(uuid)) != kSuccess) continue;
      uuids.emplace_back(uuid);
    }
    return uuids;
  }

  absl::StatusOr<uint32_t> Index(const std::string& uuid) override {
    BERTH_ASSIGN_OR_RETURN(const Device device, Find(uuid));
    unsigned int index = 0;
    const Result result = get_index_(device, &index);
    if (result != kSuccess) return Error("nvmlDeviceGetIndex", result);
    return uint32_t{index};
  }

  absl::StatusOr<std::string> Name(const std::string& uuid) override {
    BERTH_ASSIGN_OR_RETURN(const Device device, Find(uuid));
    char name[96] = {};
    const Result result = get_name_(device, name, sizeof(name));
    if (result != kSuccess) return Error("nvmlDeviceGetName", result);
    return std::string(name);
  }

  absl::StatusOr<Memory> GetMemory(const std::string& uuid) override {
    BERTH_ASSIGN_OR_RETURN(const Device device, Find(uuid));
    MemoryV1 memory = {};
    const Result result = get_memory_(device, &memory);
    if (result != kSuccess) return Error("nvmlDeviceGetMemoryInfo", result);
    return Memory{.total = Bytes(memory.total), .free = Bytes(memory.free), .used = Bytes(memory.used)};
  }

  absl::StatusOr<uint32_t> Utilization(const std::string& uuid) override {
    BERTH_ASSIGN_OR_RETURN(const Device device, Find(uuid));
    if (get_utilization_ == nullptr) return Absent("libnvidia-ml.so.1 does not support utilisation");
    UtilizationRates rates = {};
    const Result result = get_utilization_(device, &rates);
    if (result != kSuccess) return Error("nvmlDeviceGetUtilizationRates", result);
    return rates.gpu;
  }

  absl::StatusOr<std::vector<Process>> Processes(const std::string& uuid) override {
    BERTH_ASSIGN_OR_RETURN(const Device device, Find(uuid));
    BERTH_ASSIGN_OR_RETURN(std::vector<Process> processes,
                           ProcessesBy(get_processes_, "nvmlDeviceGetComputeRunningProcesses", device));
    if (get_graphics_ == nullptr) return processes;
    // If the driver does not report graphics processes, the compute processes suffice.
    const absl::StatusOr<std::vector<Process>> drawing =
        ProcessesBy(get_graphics_, "nvmlDeviceGetGraphicsRunningProcesses", device);
    if (!drawing.ok()) return processes;
    for (const Process& process : *drawing) {
      const auto both = std::find_if(processes.begin(), processes.end(),
                                     [&](const Process& other) { return other.pid == process.pid; });
      // A process of both kinds has the same bytes in either list.
      if (both == processes.end()) processes.push_back(process);
    }
    return processes;
  }

 private:
  using GetProcesses = Result (*)(Device, unsigned int*, ProcessInfoV3*);

  absl::StatusOr<std::vector<Process>> ProcessesBy(GetProcesses get, absl::string_view call,
                                                   Device device) const {
    std::vector<ProcessInfoV3> found(64);
    Result result;
    while (true) {
      unsigned int count = static_cast<unsigned int>(found.size());
      result = get(device, &count, found.data());
      if (result == kSuccess) found.resize(count);
      if (result != kInsufficientSize) break;
      // Allocates more than reported: processes come and go.
      found.resize(count + 64);
    }
    if (result != kSuccess) return Error(call, result);
    std::vector<Process> processes;
    for (const ProcessInfoV3& process : found) {
      const bool known = process.used_gpu_memory != kValueNotAvailable;
      processes.push_back({.pid = process.pid, .bytes = Bytes(known ? process.used_gpu_memory : 0)});
    }
    return processes;
  }

  template <typename F>
  static bool Find(void* library, const char* name, F* function) {
    *function = reinterpret_cast<F>(::dlsym(library, name));
    return *function != nullptr;
  }

  absl::StatusOr<Device> Find(const std::string& uuid) const {
    Device device = nullptr;
    const Result result = by_uuid_(uuid.c_str(), &device);
    if (result != kSuccess) return Error("nvmlDeviceGetHandleByUUID", result);
    return device;
  }

  absl::Status Error(absl::string_view call, Result result) const {
    return Refuse(Reason::kDriver, "{call}: {name} ({driver_code})",
                  {{"call", call}, {"name", error_string_(result)}, {"driver_code", result}});
  }

  const char* (*error_string_)(Result) = nullptr;
  Result (*get_count_)(unsigned int*) = nullptr;
  Result (*by_index_)(unsigned int, Device*) = nullptr;
  Result (*by_uuid_)(const char*, Device*) = nullptr;
  Result (*get_index_)(Device, unsigned int*) = nullptr;
  Result (*get_uuid_)(Device, char*, unsigned int) = nullptr;
  Result (*get_name_)(Device, char*, unsigned int) = nullptr;
  Result (*get_memory_)(Device, MemoryV1*) = nullptr;
  GetProcesses get_processes_ = nullptr;
  GetProcesses get_graphics_ = nullptr;
  Result (*get_utilization_)(Device, UtilizationRates*) = nullptr;
};

}  // namespace

absl::StatusOr<Nvml*> Nvml::Get() {
  static Mutex mu(absl::kConstInit);
  static Nvml* loaded ABSL_GUARDED_BY(mu) = nullptr;
  MutexLock lock(&mu);
  if (loaded == nullptr) {
    BERTH_ASSIGN_OR_RETURN(std::unique_ptr<Nvml> nvml, LoadedNvml::Load());
    loaded = nvml.release();
  }
  return loaded;
}

}  // namespace berth::cuda
