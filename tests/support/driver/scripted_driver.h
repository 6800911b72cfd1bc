// ScriptedDriver: the replies of the test libraries that replace NVIDIA's, read from a text file that may change at any
// time, and the counts that these libraries record. It uses only the standard library, because every program under test
// loads it.
//
//   devices = 2          # how many NVML knows, by its ordinals in the order of their PCI ids; 0
//   cuda = 1 0           # which of them CUDA has, fastest first; all in order
//   init_ms = 300        # how long cuInit takes
//   cuInit = abort       # what ends the process that calls it, abort or exit; or an error
//   driver = 2           # a reloaded driver: a process that initialised NVML under another gets error 1
//   0.uuid = GPU-…       # of device 0, as every other key below
//   0.pci = 00000000:01:00.0
//   0.parent = GPU-…     # the device of which it is a MIG instance
//   0.temperature = 41   # a value; "!3" for NVML's error 3, which is also the reply for an unset key
//   0.events = xid:79 double single   # reported in that order; an event set sees events added after its creation
//   0.processes = 4711:1048576
//   0.peer.1 = nvlink    # pcie, none, or an error
//   0.instances = MIG-a:16:20480      # uuid, multiprocessors, MiB
//   0.state = lost       # every NVML call returns 15; "!16": 16; gone: no library lists the device
//   0.hangs = temperature             # the call that does not return; "all"
//   0.cuDeviceTotalMem = !999         # CUDA's error of a call
//
// $BERTH_TEST_DRIVER names the file; the counts are in a second file beside it. CUDA also obeys CUDA_DEVICE_ORDER and
// CUDA_VISIBLE_DEVICES.

#ifndef TESTS_SUPPORT_DRIVER_SCRIPTED_DRIVER_H_
#define TESTS_SUPPORT_DRIVER_SCRIPTED_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace berth::testing {

// Counts of all processes together, mapped from "<file>.counts".
struct ScriptedCounts {
  std::atomic<uint64_t> cuda_inits;
  std::atomic<uint64_t> contexts;
  // Event sets that no process has freed, including those of ended processes.
  std::atomic<int64_t> event_sets;
};

// One version of the file.
class ScriptedDriver {
 public:
  // Returns the file's current version. Thread-safe.
  static std::shared_ptr<const ScriptedDriver> Now();
  static ScriptedCounts& Counts();

  // Returns a key's value; empty where it is not set.
  const std::string& Get(const std::string& key) const;
  const std::string& Get(int device, const std::string& key) const;
  uint64_t Number(const std::string& key, uint64_t otherwise = 0) const;
  uint64_t Number(int device, const std::string& key, uint64_t otherwise = 0) const;
  // Returns the error of a value "!N"; 0 for any other value.
  static int ErrorIn(const std::string& value);

  int devices() const { return static_cast<int>(Number("devices")); }
  bool IsThere(int device) const { return Get(device, "state") != "gone"; }
  // Returns all devices, sorted by their PCI ids.
  std::vector<int> InPciOrder() const;
  // Returns the device with `uuid`; -1 for none.
  int Find(const std::string& uuid) const;

 private:
  std::map<std::string, std::string> values_;
  std::map<std::string, int> by_uuid_;
};

// Blocks while the file scripts this call of the device to hang.
void HangIfScripted(int device, const std::string& call);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_DRIVER_SCRIPTED_DRIVER_H_
