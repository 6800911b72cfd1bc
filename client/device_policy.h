// DevicePolicy: what a program wants of devices; and what there is, or why there is nothing. Absence is a value: a
// program goes on without. A fault is an error: something is there and does not work.

#ifndef CLIENT_DEVICE_POLICY_H_
#define CLIENT_DEVICE_POLICY_H_

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"

namespace berth {

enum class DevicePolicy {
  // Use what there is.
  kAuto,
  // Use none, and do not look.
  kOff,
  // There must be one: its absence is an error.
  kRequired,
};

// Why there is nothing.
struct Absence {
  enum class Kind {
    // No driver, or none that this program can use.
    kNoDriver = 1,
    // A driver, and no device for it, or none that this process or the daemon has.
    kNoDevice,
    // DevicePolicy::kOff.
    kPolicyOff,
  };
  Kind kind = Kind::kNoDriver;
  // For people.
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

// A T, or why there is none.
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

#endif  // CLIENT_DEVICE_POLICY_H_
