// DeviceMetrics: the metrics that are read of a device periodically, each a number or the reason for its absence. Plain
// values, in the layout of the daemon's internal messages.

#ifndef COMMON_DEVICE_METRICS_H_
#define COMMON_DEVICE_METRICS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace berth {

enum class DeviceMetric : uint32_t {
  // Degrees Celsius.
  kTemperature,
  kSlowdownTemperature,
  // Milliwatts.
  kPower,
  kPowerLimit,
  // MHz.
  kClock,
  kMaxClock,
  kMemoryClock,
  // Percent.
  kUtilisation,
  kMemoryUtilisation,
  // Bytes.
  kTotalBytes,
  kFreeBytes,
  // ECC mode: 1 is on.
  kEccMode,
  // ECC error counts since the driver was loaded.
  kCorrectedErrors,
  kUncorrectedErrors,
  // MIG mode: 1 is on.
  kMigMode,
  // Number of NVLinks that are up.
  kNvlinks,
};
inline constexpr size_t kDeviceMetrics = static_cast<size_t>(DeviceMetric::kNvlinks) + 1;

// Reason for a missing number.
enum class MetricAbsence : uint32_t {
  kNone,
  // Not requested yet.
  kNotRead,
  kNotSupported,
  kNotPermitted,
  // The driver's library is too old to provide the metric.
  kNotInLibrary,
  kLost,
  // The device is unusable until it is reset.
  kNeedsReset,
  // `value` is the driver's error code.
  kFailed,
};

struct MetricValue {
  uint64_t value = 0;
  MetricAbsence absence = MetricAbsence::kNotRead;
  uint32_t padding = 0;

  bool known() const { return absence == MetricAbsence::kNone; }
  friend bool operator==(const MetricValue&, const MetricValue&) = default;
};

inline MetricValue Known(uint64_t value) { return {.value = value, .absence = MetricAbsence::kNone}; }
inline MetricValue Absent(MetricAbsence why, uint64_t code = 0) { return {.value = code, .absence = why}; }

// Describes the absence for display. Requires: the metric is not known.
inline std::string WhyAbsent(const MetricValue& metric) {
  switch (metric.absence) {
    case MetricAbsence::kNone:
    case MetricAbsence::kNotRead:
      break;
    case MetricAbsence::kNotSupported:
      return "not supported by the device";
    case MetricAbsence::kNotPermitted:
      return "not permitted to the daemon";
    case MetricAbsence::kNotInLibrary:
      return "not known to this version of the driver";
    case MetricAbsence::kLost:
      return "the device is lost";
    case MetricAbsence::kNeedsReset:
      return "the device has to be reset";
    case MetricAbsence::kFailed:
      return "the driver answered with code " + std::to_string(metric.value);
  }
  return "not read";
}

struct DeviceMetrics {
  std::array<MetricValue, kDeviceMetrics> values;

  MetricValue& operator[](DeviceMetric metric) { return values[static_cast<size_t>(metric)]; }
  const MetricValue& operator[](DeviceMetric metric) const { return values[static_cast<size_t>(metric)]; }
};

// Kinds of event that the driver reports for a device. The numbers are those of the wire format.
enum class DeviceEventKind : uint32_t { kXid = 1, kCorrectedEcc = 2, kUncorrectedEcc = 3 };

}  // namespace berth

#endif  // COMMON_DEVICE_METRICS_H_
