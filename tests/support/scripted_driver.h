// ScriptedDriver: what the libraries that stand for NVIDIA's in tests say, by a text file that may change at any time,
// and what they count. Of the standard library alone: they are loaded into every program under test.
//
//   devices = 2          # how many NVML knows; 0
//   cuda = 1 0           # which of them CUDA has, by its ordinals; all in order
//   init_ms = 300        # how long cuInit takes
//   driver = 2           # one that was loaded anew: a process that initialised NVML under another is answered 1
//   0.uuid = GPU-…       # of device 0; so every other key
//   0.parent = GPU-…     # that it is a MIG instance of
//   0.temperature = 41   # a figure; "!3" for NVML's error 3, which is also what is not said
//   0.events = xid:79 double single   # reported, in that order; an event set hears what is added after it is made
//   0.processes = 4711:1048576
//   0.peer.1 = nvlink    # pcie, none, or an error
//   0.instances = MIG-a:16:20480      # uuid, multiprocessors, MiB
//   0.state = lost       # every call of NVML's answers 15; "!16": 16; gone: no library knows it
//   0.hangs = temperature             # the call that does not return; "all"
//   0.cuDeviceTotalMem = !999         # CUDA's error of a call
//
// $BERTH_TEST_DRIVER names the file; the counts are in a second one beside it.

#ifndef TESTS_SUPPORT_SCRIPTED_DRIVER_H_
#define TESTS_SUPPORT_SCRIPTED_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace berth::testing {

// Of all processes together, as it lies in "<file>.counts".
struct ScriptedCounts {
  std::atomic<uint64_t> cuda_inits;
  std::atomic<uint64_t> contexts;
  // That nobody has freed, of processes that ended too.
  std::atomic<int64_t> event_sets;
};

// One state of the file.
class ScriptedDriver {
 public:
  // As the file is now. Thread-safe.
  static std::shared_ptr<const ScriptedDriver> Now();
  static ScriptedCounts& Counts();

  // Empty for what is not said.
  const std::string& Get(const std::string& key) const;
  const std::string& Get(int device, const std::string& key) const;
  uint64_t Number(const std::string& key, uint64_t otherwise = 0) const;
  uint64_t Number(int device, const std::string& key, uint64_t otherwise = 0) const;
  // The error that a value "!N" stands for; 0 for another.
  static int ErrorIn(const std::string& value);

  int devices() const { return static_cast<int>(Number("devices")); }
  bool IsThere(int device) const { return Get(device, "state") != "gone"; }
  // The device with `uuid`; -1 for none.
  int Find(const std::string& uuid) const;

 private:
  std::map<std::string, std::string> values_;
  std::map<std::string, int> by_uuid_;
};

// Does not return while the file has it so: for a call about the device that hangs.
void HangIfScripted(int device, const std::string& call);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_SCRIPTED_DRIVER_H_
