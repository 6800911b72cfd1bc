// DeviceFigures: what is read of a device again and again, a number each, or why there is none. Plain values, as they
// lie in the daemon's own messages.

#ifndef COMMON_DEVICE_FIGURES_H_
#define COMMON_DEVICE_FIGURES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace berth {

enum class DeviceFigure : uint32_t {
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
  // 1 for on.
  kEccMode,
  // Since the driver was loaded.
  kCorrectedErrors,
  kUncorrectedErrors,
  // 1 for on.
  kMigMode,
  // That are up.
  kNvlinks,
};
inline constexpr size_t kDeviceFigures = static_cast<size_t>(DeviceFigure::kNvlinks) + 1;

// Why there is no number.
enum class FigureAbsence : uint32_t {
  kNone,
  // Nobody has asked.
  kNotRead,
  kNotSupported,
  kNotPermitted,
  // The driver's library is too old to be asked.
  kNotInLibrary,
  kLost,
  // It is of no use before it was reset.
  kNeedsReset,
  // The driver's code is the value.
  kFailed,
};

struct FigureValue {
  uint64_t value = 0;
  FigureAbsence absence = FigureAbsence::kNotRead;
  uint32_t padding = 0;

  bool known() const { return absence == FigureAbsence::kNone; }
  friend bool operator==(const FigureValue&, const FigureValue&) = default;
};

inline FigureValue Known(uint64_t value) { return {.value = value, .absence = FigureAbsence::kNone}; }
inline FigureValue Absent(FigureAbsence why, uint64_t code = 0) { return {.value = code, .absence = why}; }

// For people. Requires: it is not known.
inline std::string WhyAbsent(const FigureValue& figure) {
  switch (figure.absence) {
    case FigureAbsence::kNone:
    case FigureAbsence::kNotRead:
      break;
    case FigureAbsence::kNotSupported:
      return "not supported by the device";
    case FigureAbsence::kNotPermitted:
      return "not permitted to the daemon";
    case FigureAbsence::kNotInLibrary:
      return "not known to this version of the driver";
    case FigureAbsence::kLost:
      return "the device is lost";
    case FigureAbsence::kNeedsReset:
      return "the device has to be reset";
    case FigureAbsence::kFailed:
      return "the driver answered with code " + std::to_string(figure.value);
  }
  return "not read";
}

struct DeviceFigures {
  std::array<FigureValue, kDeviceFigures> values;

  FigureValue& operator[](DeviceFigure figure) { return values[static_cast<size_t>(figure)]; }
  const FigureValue& operator[](DeviceFigure figure) const { return values[static_cast<size_t>(figure)]; }
};

// What the driver reported of a device: the numbers are the wire's.
enum class DeviceEventKind : uint32_t { kXid = 1, kCorrectedEcc = 2, kUncorrectedEcc = 3 };

}  // namespace berth

#endif  // COMMON_DEVICE_FIGURES_H_
