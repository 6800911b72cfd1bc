// DriverScript: writes the script that the test driver libraries tests/support/driver/libcuda.so.1 and
// libnvidia-ml.so.1 read (scripted_driver.h), and provides the environment with which a process loads them.
//
//   DriverScript driver(2);
//   TestDaemon daemon({.environment = driver.environment(), .backend = "cuda"});
//   driver.Set(1, "temperature", "90");

#ifndef TESTS_SUPPORT_DRIVER_DRIVER_SCRIPT_H_
#define TESTS_SUPPORT_DRIVER_DRIVER_SCRIPT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/support/driver/scripted_driver.h"

namespace berth::testing {

class DriverScript {
 public:
  // Starts with `devices` healthy devices of 1 GiB each, and NVLink between all of them.
  explicit DriverScript(int devices);
  DriverScript(const DriverScript&) = delete;
  DriverScript& operator=(const DriverScript&) = delete;
  ~DriverScript();

  // Whether this build of the daemon calls CUDA at all; a build without CUDA headers does not.
  static bool IsOfUse();
  static std::string UuidOf(int device);

  // Sets a value of the script from now on; an empty value removes it. Several keys in one call change at once.
  void Set(const std::string& key, const std::string& value) { SetAll({{key, value}}); }
  void Set(int device, absl::string_view key, const std::string& value);
  void SetAll(const std::map<std::string, std::string>& values);

  std::vector<std::string> environment() const;
  const ScriptedCounts& counts() const { return *counts_; }

 private:
  void Write() const;

  const std::string path_;
  std::map<std::string, std::string> values_;
  ScriptedCounts* counts_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_DRIVER_DRIVER_SCRIPT_H_
