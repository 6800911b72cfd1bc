// NvmlSurvey: how one device is, by NVML and without a context: temperature, power, clocks, errors, what it is linked
// to, and what the driver reports as it happens. Every number may be missing by itself.

#ifndef COMMON_CUDA_NVML_SURVEY_H_
#define COMMON_CUDA_NVML_SURVEY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "common/device_figures.h"

namespace berth::cuda {

// One caller at a time; several devices may be read at once. A call may hang as long as the driver does.
class NvmlSurvey {
 public:
  // Of the device with `uuid`. Loads and initialises the library (nvml.h).
  // Errors: UNSUPPORTED where there is no NVML; DRIVER.
  static absl::StatusOr<std::unique_ptr<NvmlSurvey>> Open(const std::string& uuid);

  virtual ~NvmlSurvey() = default;

  // All but the bytes, which nvml.h reads.
  virtual void Read(DeviceFigures* figures) = 0;
  // "00000000:4E:00.0". Errors: DRIVER.
  virtual absl::StatusOr<std::string> PciId() = 0;
  // The UUID of the device that this is a MIG instance of. Errors: DRIVER, also for one that is no instance;
  // UNSUPPORTED where the library is too old.
  virtual absl::StatusOr<std::string> MigParent() = 0;

  // How the device reaches another one's memory.
  struct Reach {
    // Each by the driver's word alone; false where it gives none.
    bool peer = false;
    bool nvlink = false;
  };
  // Errors: DRIVER; UNSUPPORTED where the library is too old.
  virtual absl::StatusOr<Reach> ReachOf(const std::string& peer_uuid) = 0;

  struct Instance {
    std::string uuid;
    // 0 where they are not told.
    uint32_t multiprocessors = 0;
    Bytes total;
  };
  // Its MIG instances; none for a device that is not divided.
  virtual std::vector<Instance> Instances() = 0;

  struct Event {
    DeviceEventKind kind = DeviceEventKind::kXid;
    uint64_t code = 0;
  };
  // What was reported since this was last asked, without waiting. Nothing where the device reports nothing.
  virtual std::vector<Event> TakeEvents() = 0;
};

// Why there is no figure where NVML refused one with `status`. Requires: it is not OK.
FigureValue AbsenceOf(const absl::Status& status);

}  // namespace berth::cuda

#endif  // COMMON_CUDA_NVML_SURVEY_H_
