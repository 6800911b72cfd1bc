// DevicePolicy: what a program requires of devices. OrAbsent: a value, or the reason for its absence. Absence is a
// value: the program continues without a device. A fault is an error: a device exists and does not work.

#ifndef BERTH_DEVICE_POLICY_H_
#define BERTH_DEVICE_POLICY_H_

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"

namespace berth {

enum class DevicePolicy {
  // Use the available devices.
  kAuto,
  // Use no device, and do not probe.
  kOff,
  // At least one device must exist: its absence is an error.
  kRequired,
};

// Why no device is available.
struct Absence {
  enum class Kind {
    // No driver, or none that this program can use.
    kNoDriver = 1,
    // A driver, but no device for it, or no device that this process or the daemon can use.
    kNoDevice,
    // DevicePolicy::kOff.
    kPolicyOff,
  };
  Kind kind = Kind::kNoDriver;
  // Explanation for people.
  std::string why;
};

// "NO_DRIVER", "NO_DEVICE", "POLICY_OFF".
inline absl::string_view AbsenceName(Absence::Kind kind) {
  switch (kind) {
    case Absence::Kind::kNoDriver:
      break;
    case Absence::Kind::kNoDevice:
      return "NO_DEVICE";
    case Absence::Kind::kPolicyOff:
      return "POLICY_OFF";
  }
  return "NO_DRIVER";
}

// A T, or the reason for its absence.
template <typename T>
class OrAbsent {
 public:
  OrAbsent(T value) : what_(std::move(value)) {}
  OrAbsent(Absence absence) : what_(std::move(absence)) {}

  bool present() const { return std::holds_alternative<T>(what_); }
  // Requires: present().
  T& value() & { return std::get<T>(what_); }
  const T& value() const& { return std::get<T>(what_); }
  T&& value() && { return std::get<T>(std::move(what_)); }
  // Requires: not present().
  const Absence& absence() const { return std::get<Absence>(what_); }

 private:
  std::variant<T, Absence> what_;
};

}  // namespace berth

#endif  // BERTH_DEVICE_POLICY_H_
