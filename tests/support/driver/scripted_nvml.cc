// libnvidia-ml.so.1 with scripted replies (scripted_driver.h): the calls that Berth makes, by NVML's own names and
// numbers.

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/driver/scripted_driver.h"

namespace {

using berth::testing::HangIfScripted;
using berth::testing::ScriptedDriver;

constexpr int kSuccess = 0, kUninitialized = 1, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6;
constexpr int kInsufficientSize = 7, kTimeout = 10, kGpuIsLost = 15, kResetRequired = 16;

// A device's handle: its number plus one in the low 16 bits, and above them its MIG instance's number plus one.
using Device = uintptr_t;
Device HandleOf(int device, int instance = -1) {
  return static_cast<Device>(1 + device) | static_cast<Device>(instance + 1) << 16;
}
int NumberOf(Device handle) { return static_cast<int>(handle & 0xffff) - 1; }
int InstanceOf(Device handle) { return static_cast<int>(handle >> 16) - 1; }

// The driver under which this process initialised NVML.
uint64_t g_driver = 0;
bool g_initialised = false;

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Splits "a:b:c".
std::vector<std::string> Parts(const std::string& word) {
  std::istringstream stream(word);
  std::vector<std::string> parts;
  for (std::string part; std::getline(stream, part, ':');) parts.push_back(part);
  return parts;
}

int CheckDriver() {
  return g_initialised && ScriptedDriver::Now()->Number("driver") == g_driver ? kSuccess : kUninitialized;
}

int Check(Device handle, const char* call) {
  if (const int refused = CheckDriver(); refused != kSuccess) return refused;
  const int device = NumberOf(handle);
  if (device < 0) return kInvalidArgument;
  HangIfScripted(device, call);
  const auto script = ScriptedDriver::Now();
  const std::string& state = script->Get(device, "state");
  if (const int error = ScriptedDriver::ErrorIn(state); error != 0) return error;
  return state == "lost" || state == "gone" ? kGpuIsLost : kSuccess;
}

// Reads a value, or returns the error of an absent one.
template <typename Out>
int NamedValue(Device handle, const char* key, Out* out) {
  if (const int refused = Check(handle, key); refused != kSuccess) return refused;
  const auto script = ScriptedDriver::Now();
  const std::string& value = script->Get(NumberOf(handle), key);
  if (value.empty()) return kNotSupported;
  if (const int error = ScriptedDriver::ErrorIn(value); error != 0) return error;
  *out = static_cast<Out>(script->Number(NumberOf(handle), key));
  return kSuccess;
}

int CopyText(const std::string& text, char* out, unsigned int size) {
  if (text.size() >= size) return kInsufficientSize;
  memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

// The events that a set registered for, and those already delivered.
struct EventSet {
  int device = -1;
  unsigned long long types = 0;
  size_t heard = 0;
};

struct Memory {
  unsigned long long total, free, used;
};
struct Utilisation {
  unsigned int gpu, memory;
};
struct Process {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance;
};
struct PciInfo {
  char legacy_bus_id[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct EventData {
  Device device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
};
struct Attributes {
  unsigned int multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
  unsigned long long memory_mib;
};

}  // namespace

extern "C" {

int nvmlInit_v2() {
  g_driver = ScriptedDriver::Now()->Number("driver");
  g_initialised = true;
  return kSuccess;
}

const char* nvmlErrorString(int code) {
  switch (code) {
    case kUninitialized:
      return "Uninitialized";
    case kNotFound:
      return "Not Found";
    case kGpuIsLost:
      return "GPU is lost";
    case kResetRequired:
      return "GPU requires reset";
    default:
      return "an error";
  }
}

int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(ScriptedDriver::Now()->devices());
  return CheckDriver();
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* out) {
  if (const int refused = CheckDriver(); refused != kSuccess) return refused;
  const std::vector<int> devices = ScriptedDriver::Now()->InPciOrder();
  if (index >= devices.size()) return kInvalidArgument;
  *out = HandleOf(devices[index]);
  return kSuccess;
}

int nvmlDeviceGetIndex(Device handle, unsigned int* out) {
  if (const int refused = Check(handle, "index"); refused != kSuccess) return refused;
  const auto script = ScriptedDriver::Now();
  if (const int error = ScriptedDriver::ErrorIn(script->Get(NumberOf(handle), "index")); error != 0) return error;
  const std::vector<int> devices = script->InPciOrder();
  *out = static_cast<unsigned int>(std::ranges::find(devices, NumberOf(handle)) - devices.begin());
  return kSuccess;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, Device* out) {
  if (const int refused = CheckDriver(); refused != kSuccess) return refused;
  const auto script = ScriptedDriver::Now();
  const int device = script->Find(uuid);
  if (device < 0 || !script->IsThere(device)) return kNotFound;
  *out = HandleOf(device);
  return Check(*out, "handle");
}

int nvmlDeviceGetUUID(Device handle, char* out, unsigned int size) {
  if (const int refused = Check(handle, "uuid"); refused != kSuccess) return refused;
  const auto script = ScriptedDriver::Now();
  if (InstanceOf(handle) < 0) return CopyText(script->Get(NumberOf(handle), "uuid"), out, size);
  const std::vector<std::string> instances = Words(script->Get(NumberOf(handle), "instances"));
  return CopyText(Parts(instances.at(static_cast<size_t>(InstanceOf(handle))))[0], out, size);
}

int nvmlDeviceGetName(Device handle, char* out, unsigned int size) {
  if (const int refused = Check(handle, "name"); refused != kSuccess) return refused;
  return CopyText(ScriptedDriver::Now()->Get(NumberOf(handle), "name"), out, size);
}

int nvmlDeviceGetPciInfo_v3(Device handle, PciInfo* out) {
  if (const int refused = Check(handle, "pci"); refused != kSuccess) return refused;
  const auto script = ScriptedDriver::Now();
  const std::string& value = script->Get(NumberOf(handle), "pci");
  if (value.empty()) return kNotSupported;
  return CopyText(value, out->bus_id, sizeof(out->bus_id));
}

int nvmlDeviceGetMemoryInfo(Device handle, Memory* out) {
  if (const int refused = NamedValue(handle, "total", &out->total); refused != kSuccess) return refused;
  if (const int refused = NamedValue(handle, "free", &out->free); refused != kSuccess) return refused;
  out->used = out->total - out->free;
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device handle, unsigned int* count, Process* out) {
  if (const int refused = Check(handle, "processes"); refused != kSuccess) return refused;
  const auto script = ScriptedDriver::Now();
  const std::string& value = script->Get(NumberOf(handle), "processes");
  if (const int error = ScriptedDriver::ErrorIn(value); error != 0) return error;
  const std::vector<std::string> processes = Words(value);
  const unsigned int capacity = *count;
  *count = static_cast<unsigned int>(processes.size());
  if (processes.size() > capacity) return kInsufficientSize;
  for (size_t i = 0; i < processes.size(); ++i) {
    out[i] = {};
    sscanf(processes[i].c_str(), "%u:%llu", &out[i].pid, &out[i].bytes);
  }
  return kSuccess;
}

int nvmlDeviceGetTemperature(Device handle, int, unsigned int* out) { return NamedValue(handle, "temperature", out); }
int nvmlDeviceGetTemperatureThreshold(Device handle, int, unsigned int* out) {
  return NamedValue(handle, "slowdown_temperature", out);
}
int nvmlDeviceGetPowerUsage(Device handle, unsigned int* out) { return NamedValue(handle, "power", out); }
int nvmlDeviceGetEnforcedPowerLimit(Device handle, unsigned int* out) { return NamedValue(handle, "power_limit", out); }
int nvmlDeviceGetClockInfo(Device handle, int type, unsigned int* out) {
  return NamedValue(handle, type == 1 ? "clock" : "memory_clock", out);
}
int nvmlDeviceGetMaxClockInfo(Device handle, int, unsigned int* out) { return NamedValue(handle, "max_clock", out); }
int nvmlDeviceGetTotalEccErrors(Device handle, int type, int, unsigned long long* out) {
  return NamedValue(handle, type == 0 ? "corrected_errors" : "uncorrected_errors", out);
}

int nvmlDeviceGetUtilizationRates(Device handle, Utilisation* out) {
  if (const int refused = NamedValue(handle, "utilisation", &out->gpu); refused != kSuccess) return refused;
  return NamedValue(handle, "memory_utilisation", &out->memory);
}

int nvmlDeviceGetEccMode(Device handle, int* now, int* pending) {
  *pending = 0;
  return NamedValue(handle, "ecc_mode", now);
}

int nvmlDeviceGetMigMode(Device handle, unsigned int* now, unsigned int* pending) {
  *pending = 0;
  return NamedValue(handle, "mig_mode", now);
}

int nvmlDeviceGetMaxMigDeviceCount(Device handle, unsigned int* out) {
  *out = 7;
  return Check(handle, "instances");
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device handle, unsigned int index, Device* out) {
  if (const int refused = Check(handle, "instances"); refused != kSuccess) return refused;
  const size_t instances = Words(ScriptedDriver::Now()->Get(NumberOf(handle), "instances")).size();
  if (index >= instances) return kNotFound;
  *out = HandleOf(NumberOf(handle), static_cast<int>(index));
  return kSuccess;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device handle, Device* out) {
  if (const int refused = Check(handle, "parent"); refused != kSuccess) return refused;
  const auto script = ScriptedDriver::Now();
  const std::string& parent = script->Get(NumberOf(handle), "parent");
  if (parent.empty()) return kInvalidArgument;
  return nvmlDeviceGetHandleByUUID(parent.c_str(), out);
}

int nvmlDeviceGetAttributes_v2(Device handle, Attributes* out) {
  if (InstanceOf(handle) < 0) return kNotSupported;
  const auto script = ScriptedDriver::Now();
  const std::vector<std::string> instances = Words(script->Get(NumberOf(handle), "instances"));
  const std::vector<std::string> parts = Parts(instances.at(static_cast<size_t>(InstanceOf(handle))));
  *out = {};
  out->multiprocessors = static_cast<unsigned int>(std::stoul(parts.at(1)));
  out->memory_mib = std::stoull(parts.at(2));
  return kSuccess;
}

int nvmlDeviceGetNvLinkState(Device handle, unsigned int link, int* active) {
  unsigned int up = 0;
  if (const int refused = NamedValue(handle, "nvlinks", &up); refused != kSuccess) return refused;
  *active = link < up ? 1 : 0;
  return kSuccess;
}

int nvmlDeviceGetP2PStatus(Device handle, Device peer, int what, int* status) {
  if (const int refused = Check(handle, "peers"); refused != kSuccess) return refused;
  const std::string reach = ScriptedDriver::Now()->Get(NumberOf(handle), "peer." + std::to_string(NumberOf(peer)));
  if (const int error = ScriptedDriver::ErrorIn(reach); error != 0) return error;
  // 0 is reading, 2 is NVLink.
  const bool can = reach == "nvlink" || (reach == "pcie" && what == 0);
  *status = can ? 0 : 3;
  return kSuccess;
}

int nvmlEventSetCreate(EventSet** out) {
  *out = new EventSet;
  ++ScriptedDriver::Counts().event_sets;
  return kSuccess;
}

int nvmlEventSetFree(EventSet* set) {
  delete set;
  --ScriptedDriver::Counts().event_sets;
  return kSuccess;
}

int nvmlDeviceRegisterEvents(Device handle, unsigned long long types, EventSet* set) {
  if (const int refused = Check(handle, "register"); refused != kSuccess) return refused;
  const auto script = ScriptedDriver::Now();
  // As on a device without ECC: the whole registration fails.
  if ((types & 3) != 0 && script->Get(NumberOf(handle), "ecc_mode").empty()) return kNotSupported;
  *set = {.device = NumberOf(handle), .types = types, .heard = Words(script->Get(NumberOf(handle), "events")).size()};
  return kSuccess;
}

int nvmlEventSetWait_v2(EventSet* set, EventData* out, unsigned int) {
  if (const int refused = CheckDriver(); refused != kSuccess) return refused;
  const std::vector<std::string> events = Words(ScriptedDriver::Now()->Get(set->device, "events"));
  while (set->heard < events.size()) {
    const std::vector<std::string> parts = Parts(events[set->heard++]);
    const unsigned long long type = parts[0] == "xid" ? 8 : parts[0] == "double" ? 2 : 1;
    if ((set->types & type) == 0) continue;
    *out = {};
    out->device = HandleOf(set->device);
    out->type = type;
    if (parts.size() > 1) out->data = std::stoull(parts[1]);
    return kSuccess;
  }
  return kTimeout;
}

}  // extern "C"
