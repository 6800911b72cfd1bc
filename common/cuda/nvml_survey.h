// NvmlSurvey: the state of one device, by NVML and without a context: temperature, power, clocks, errors, links, and
// the events that the driver reports. Each number may be missing independently.

#ifndef COMMON_CUDA_NVML_SURVEY_H_
#define COMMON_CUDA_NVML_SURVEY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/statusor.h"
#include "common/device_metrics.h"

namespace berth::cuda {

// One caller at a time per object; several devices may be read concurrently. A call may hang as long as the driver
// does.
class NvmlSurvey {
 public:
  // Opens the device with `uuid`. Loads and initialises the library (nvml.h).
  // Errors: UNSUPPORTED if NVML is missing; DRIVER.
  static absl::StatusOr<std::unique_ptr<NvmlSurvey>> Open(const std::string& uuid);

  virtual ~NvmlSurvey() = default;

  // Reads all metrics except the bytes, which nvml.h reads.
  virtual void Read(DeviceMetrics* metrics) = 0;
  // Returns the PCI id, such as "00000000:4E:00.0". Errors: DRIVER.
  virtual absl::StatusOr<std::string> PciId() = 0;
  // Returns the UUID of the device that contains this MIG instance. Errors: DRIVER, also for a device that is no
  // instance; UNSUPPORTED if the library is too old.
  virtual absl::StatusOr<std::string> MigParent() = 0;

  // How the device reaches another device's memory.
  struct Reach {
    // As the driver reports; false if it does not report.
    bool peer = false;
    bool nvlink = false;
  };
  // Errors: DRIVER; UNSUPPORTED if the library is too old.
  virtual absl::StatusOr<Reach> ReachOf(const std::string& peer_uuid) = 0;

  struct Instance {
    std::string uuid;
    // 0 if the driver does not report them.
    uint32_t multiprocessors = 0;
    Bytes total;
  };
  // Returns the device's MIG instances; none if it is not partitioned.
  virtual std::vector<Instance> Instances() = 0;

  struct Event {
    DeviceEventKind kind = DeviceEventKind::kXid;
    uint64_t code = 0;
  };
  // Returns the events since the last call, without waiting. Empty if the device reports none.
  virtual std::vector<Event> TakeEvents() = 0;
};

// Returns the absence to record after an NVML call failed with `status`. Requires: not OK.
MetricValue AbsenceOf(const absl::Status& status);

}  // namespace berth::cuda

#endif  // COMMON_CUDA_NVML_SURVEY_H_
