#include "common/cuda/nvml_survey.h"

#include <dlfcn.h>

#include <optional>
#include <utility>

#include <berth/error.h>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "common/cuda/nvml.h"
#include "common/status_macros.h"

namespace berth::cuda {
namespace {

// Declarations of NVML, as in nvml.h of the toolkit.
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kNotSupported = 3;
constexpr Result kNoPermission = 4;
constexpr Result kFunctionNotFound = 13;
constexpr Result kGpuIsLost = 15;
constexpr Result kResetRequired = 16;
using Device = struct nvmlDevice_st*;
using EventSet = struct nvmlEventSet_st*;

constexpr int kGpuSensor = 0;
constexpr int kSlowdownThreshold = 1;
constexpr int kSmClock = 1;
constexpr int kMemoryClock = 2;
constexpr int kCorrected = 0;
constexpr int kUncorrected = 1;
constexpr int kSinceDriverLoad = 0;
constexpr int kPeerRead = 0;
constexpr int kPeerNvlink = 2;
constexpr int kPeerOk = 0;
constexpr unsigned int kMaxLinks = 18;
constexpr unsigned long long kSingleBitEcc = 0x1, kDoubleBitEcc = 0x2, kXid = 0x8;

struct UtilizationRates {
  unsigned int gpu;
  unsigned int memory;
};
struct PciInfo {
  char legacy_bus_id[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct EventData {
  Device device;
  unsigned long long type;
  unsigned long long data;
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
struct DeviceAttributes {
  unsigned int multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
  unsigned long long memory_mib;
};

// The library's functions; null for each that it lacks.
struct Library {
  const char* (*error_string)(Result);
  Result (*by_uuid)(const char*, Device*);
  Result (*uuid)(Device, char*, unsigned int);
  Result (*temperature)(Device, int, unsigned int*);
  Result (*temperature_threshold)(Device, int, unsigned int*);
  Result (*power)(Device, unsigned int*);
  Result (*power_limit)(Device, unsigned int*);
  Result (*clock)(Device, int, unsigned int*);
  Result (*max_clock)(Device, int, unsigned int*);
  Result (*utilisation)(Device, UtilizationRates*);
  Result (*ecc_mode)(Device, int*, int*);
  Result (*ecc_errors)(Device, int, int, unsigned long long*);
  Result (*mig_mode)(Device, unsigned int*, unsigned int*);
  Result (*mig_count)(Device, unsigned int*);
  Result (*mig_device)(Device, unsigned int, Device*);
  Result (*mig_parent)(Device, Device*);
  Result (*attributes)(Device, DeviceAttributes*);
  Result (*link_state)(Device, unsigned int, int*);
  Result (*peer_status)(Device, Device, int, int*);
  Result (*pci)(Device, PciInfo*);
  Result (*event_set)(EventSet*);
  Result (*register_events)(Device, unsigned long long, EventSet);
  Result (*event_wait)(EventSet, EventData*, unsigned int);
  Result (*free_event_set)(EventSet);
};

template <typename F>
void Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(::dlsym(library, name));
}

const Library& TheLibrary() {
  static const Library* const kLibrary = [] {
    auto* const found = new Library();
    // The library is loaded already; this returns the same one.
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return found;
    Find(library, "nvmlErrorString", &found->error_string);
    Find(library, "nvmlDeviceGetHandleByUUID", &found->by_uuid);
    Find(library, "nvmlDeviceGetUUID", &found->uuid);
    Find(library, "nvmlDeviceGetTemperature", &found->temperature);
    Find(library, "nvmlDeviceGetTemperatureThreshold", &found->temperature_threshold);
    Find(library, "nvmlDeviceGetPowerUsage", &found->power);
    Find(library, "nvmlDeviceGetEnforcedPowerLimit", &found->power_limit);
    Find(library, "nvmlDeviceGetClockInfo", &found->clock);
    Find(library, "nvmlDeviceGetMaxClockInfo", &found->max_clock);
    Find(library, "nvmlDeviceGetUtilizationRates", &found->utilisation);
    Find(library, "nvmlDeviceGetEccMode", &found->ecc_mode);
    Find(library, "nvmlDeviceGetTotalEccErrors", &found->ecc_errors);
    Find(library, "nvmlDeviceGetMigMode", &found->mig_mode);
    Find(library, "nvmlDeviceGetMaxMigDeviceCount", &found->mig_count);
    Find(library, "nvmlDeviceGetMigDeviceHandleByIndex", &found->mig_device);
    Find(library, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", &found->mig_parent);
    Find(library, "nvmlDeviceGetAttributes_v2", &found->attributes);
    Find(library, "nvmlDeviceGetNvLinkState", &found->link_state);
    Find(library, "nvmlDeviceGetP2PStatus", &found->peer_status);
    Find(library, "nvmlDeviceGetPciInfo_v3", &found->pci);
    Find(library, "nvmlEventSetCreate", &found->event_set);
    Find(library, "nvmlDeviceRegisterEvents", &found->register_events);
    Find(library, "nvmlEventSetWait_v2", &found->event_wait);
    Find(library, "nvmlEventSetFree", &found->free_event_set);
    return found;
  }();
  return *kLibrary;
}

MetricValue ValueOf(Result result, uint64_t value) {
  switch (result) {
    case kSuccess:
      return Known(value);
    case kNotSupported:
      return Absent(MetricAbsence::kNotSupported);
    case kNoPermission:
      return Absent(MetricAbsence::kNotPermitted);
    case kFunctionNotFound:
      return Absent(MetricAbsence::kNotInLibrary);
    case kGpuIsLost:
      return Absent(MetricAbsence::kLost);
    case kResetRequired:
      return Absent(MetricAbsence::kNeedsReset);
    default:
      return Absent(MetricAbsence::kFailed, static_cast<uint64_t>(result));
  }
}

// Returns the output parameter of `function`, or why there is none.
template <typename Out, typename... Params, typename... Args>
MetricValue Ask(Result (*function)(Params...), Args... args) {
  if (function == nullptr) return Absent(MetricAbsence::kNotInLibrary);
  Out value = {};
  const Result result = function(args..., &value);
  return ValueOf(result, static_cast<uint64_t>(value));
}

absl::Status Error(absl::string_view call, Result result) {
  const Library& nvml = TheLibrary();
  return Refuse(Reason::kDriver, "{call}: {name} ({driver_code})",
                {{"call", call},
                 {"name", nvml.error_string == nullptr ? "error" : nvml.error_string(result)},
                 {"driver_code", result}});
}

absl::Status TooOld(absl::string_view call) {
  return Refuse(Reason::kUnsupported, "no {capability}: libnvidia-ml.so.1 is too old",
                {{"capability", call}});
}

class LoadedSurvey final : public NvmlSurvey {
 public:
  explicit LoadedSurvey(Device device) : device_(device) {
    if (nvml_.event_set == nullptr || nvml_.register_events == nullptr || nvml_.event_wait == nullptr ||
        nvml_.free_event_set == nullptr) {
      return;
    }
    if (nvml_.event_set(&events_) != kSuccess) {
      events_ = nullptr;
      return;
    }
    // A single event type that the device does not know fails the whole registration.
    reports_ = nvml_.register_events(device_, kXid | kSingleBitEcc | kDoubleBitEcc, events_) == kSuccess ||
               nvml_.register_events(device_, kXid, events_) == kSuccess;
  }
  LoadedSurvey(const LoadedSurvey&) = delete;
  LoadedSurvey& operator=(const LoadedSurvey&) = delete;
  // The registrations end with the set; a set that is not freed leaks a file descriptor.
  ~LoadedSurvey() override {
    if (events_ != nullptr) nvml_.free_event_set(events_);
  }

  void Read(DeviceMetrics* metrics) override {
    DeviceMetrics& to = *metrics;
    using F = DeviceMetric;
    to[F::kTemperature] = Ask<unsigned int>(nvml_.temperature, device_, kGpuSensor);
    to[F::kSlowdownTemperature] = Ask<unsigned int>(nvml_.temperature_threshold, device_, kSlowdownThreshold);
    to[F::kPower] = Ask<unsigned int>(nvml_.power, device_);
    to[F::kPowerLimit] = Ask<unsigned int>(nvml_.power_limit, device_);
    to[F::kClock] = Ask<unsigned int>(nvml_.clock, device_, kSmClock);
    to[F::kMaxClock] = Ask<unsigned int>(nvml_.max_clock, device_, kSmClock);
    to[F::kMemoryClock] = Ask<unsigned int>(nvml_.clock, device_, kMemoryClock);
    to[F::kCorrectedErrors] =
        Ask<unsigned long long>(nvml_.ecc_errors, device_, kCorrected, kSinceDriverLoad);
    to[F::kUncorrectedErrors] =
        Ask<unsigned long long>(nvml_.ecc_errors, device_, kUncorrected, kSinceDriverLoad);
    ReadPairs(&to);
    ReadLinks(&to);
  }

  absl::StatusOr<std::string> PciId() override {
    if (nvml_.pci == nullptr) return TooOld("nvmlDeviceGetPciInfo_v3");
    PciInfo info = {};
    if (const Result result = nvml_.pci(device_, &info); result != kSuccess) {
      return Error("nvmlDeviceGetPciInfo", result);
    }
    info.bus_id[sizeof(info.bus_id) - 1] = '\0';
    return std::string(info.bus_id);
  }

  absl::StatusOr<std::string> MigParent() override {
    if (nvml_.mig_parent == nullptr || nvml_.uuid == nullptr) {
      return TooOld("nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
    }
    Device parent = nullptr;
    char uuid[96] = {};
    if (const Result result = nvml_.mig_parent(device_, &parent); result != kSuccess) {
      return Error("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", result);
    }
    if (const Result result = nvml_.uuid(parent, uuid, sizeof(uuid)); result != kSuccess) {
      return Error("nvmlDeviceGetUUID", result);
    }
    return std::string(uuid);
  }

  absl::StatusOr<Reach> ReachOf(const std::string& peer_uuid) override {
    if (nvml_.peer_status == nullptr) return TooOld("nvmlDeviceGetP2PStatus");
    Device peer = nullptr;
    if (const Result result = nvml_.by_uuid(peer_uuid.c_str(), &peer); result != kSuccess) {
      return Error("nvmlDeviceGetHandleByUUID", result);
    }
    int read = -1, nvlink = -1;
    if (const Result result = nvml_.peer_status(device_, peer, kPeerRead, &read); result != kSuccess) {
      return Error("nvmlDeviceGetP2PStatus", result);
    }
    const Result linked = nvml_.peer_status(device_, peer, kPeerNvlink, &nvlink);
    return Reach{.peer = read == kPeerOk, .nvlink = linked == kSuccess && nvlink == kPeerOk};
  }

  std::vector<Instance> Instances() override {
    std::vector<Instance> instances;
    unsigned int most = 0;
    if (nvml_.mig_count == nullptr || nvml_.mig_device == nullptr || nvml_.uuid == nullptr ||
        nvml_.mig_count(device_, &most) != kSuccess) {
      return instances;
    }
    for (unsigned int i = 0; i < most; ++i) {
      Device device = nullptr;
      char uuid[96] = {};
      if (nvml_.mig_device(device_, i, &device) != kSuccess) continue;
      if (nvml_.uuid(device, uuid, sizeof(uuid)) != kSuccess) continue;
      Instance instance = {.uuid = uuid};
      DeviceAttributes attributes = {};
      if (nvml_.attributes != nullptr && nvml_.attributes(device, &attributes) == kSuccess) {
        instance.multiprocessors = attributes.multiprocessors;
        instance.total = MiB(attributes.memory_mib);
      }
      instances.push_back(std::move(instance));
    }
    return instances;
  }

  std::vector<Event> TakeEvents() override {
    std::vector<Event> events;
    EventData data = {};
    while (reports_ && events.size() < kMaxEvents && nvml_.event_wait(events_, &data, 0) == kSuccess) {
      if ((data.type & kXid) != 0) {
        events.push_back({.kind = DeviceEventKind::kXid, .code = data.data});
      } else if ((data.type & kDoubleBitEcc) != 0) {
        events.push_back({.kind = DeviceEventKind::kUncorrectedEcc});
      } else if ((data.type & kSingleBitEcc) != 0) {
        events.push_back({.kind = DeviceEventKind::kCorrectedEcc});
      }
    }
    return events;
  }

 private:
  // Reads the metrics that NVML returns in pairs.
  void ReadPairs(DeviceMetrics* to) const {
    UtilizationRates rates = {};
    const Result used = nvml_.utilisation == nullptr ? kFunctionNotFound : nvml_.utilisation(device_, &rates);
    (*to)[DeviceMetric::kUtilisation] = ValueOf(used, rates.gpu);
    (*to)[DeviceMetric::kMemoryUtilisation] = ValueOf(used, rates.memory);
    int ecc = 0, ecc_pending = 0;
    const Result corrected =
        nvml_.ecc_mode == nullptr ? kFunctionNotFound : nvml_.ecc_mode(device_, &ecc, &ecc_pending);
    (*to)[DeviceMetric::kEccMode] = ValueOf(corrected, static_cast<uint64_t>(ecc));
    unsigned int mig = 0, mig_pending = 0;
    const Result divided =
        nvml_.mig_mode == nullptr ? kFunctionNotFound : nvml_.mig_mode(device_, &mig, &mig_pending);
    (*to)[DeviceMetric::kMigMode] = ValueOf(divided, mig);
  }

  void ReadLinks(DeviceMetrics* to) const {
    uint64_t up = 0;
    Result last = kFunctionNotFound;
    for (unsigned int link = 0; nvml_.link_state != nullptr && link < kMaxLinks; ++link) {
      int active = 0;
      const Result result = nvml_.link_state(device_, link, &active);
      // A device with fewer links fails for the others.
      if (result != kSuccess) {
        if (link == 0) last = result;
        break;
      }
      last = kSuccess;
      up += active == 1 ? 1 : 0;
    }
    (*to)[DeviceMetric::kNvlinks] = ValueOf(last, up);
  }

  // Most events of one read; the next read returns the rest.
  static constexpr size_t kMaxEvents = 64;

  const Library& nvml_ = TheLibrary();
  const Device device_;
  EventSet events_ = nullptr;
  bool reports_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NvmlSurvey>> NvmlSurvey::Open(const std::string& uuid) {
  BERTH_RETURN_IF_ERROR(Nvml::Get().status());
  const Library& nvml = TheLibrary();
  if (nvml.by_uuid == nullptr) return TooOld("nvmlDeviceGetHandleByUUID");
  Device device = nullptr;
  if (const Result result = nvml.by_uuid(uuid.c_str(), &device); result != kSuccess) {
    return Error("nvmlDeviceGetHandleByUUID", result);
  }
  return std::make_unique<LoadedSurvey>(device);
}

MetricValue AbsenceOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value()) return Absent(MetricAbsence::kNotRead);
  if (details->reason == Reason::kUnsupported) return Absent(MetricAbsence::kNotInLibrary);
  const auto code = details->metadata.find("driver_code");
  Result result = 0;
  if (code == details->metadata.end() || !absl::SimpleAtoi(code->second, &result) || result == kSuccess) {
    return Absent(MetricAbsence::kNotRead);
  }
  return ValueOf(result, 0);
}

}  // namespace berth::cuda
