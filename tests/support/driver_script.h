// DriverScript: a driver of a test's own, as the libraries tests/support/libcuda.so.1 and libnvidia-ml.so.1 have it
// (scripted_driver.h): the file that they read, and the environment that has a process load them.
//
//   DriverScript driver(2);
//   TestDaemon daemon({.environment = driver.environment(), .backend = "cuda"});
//   driver.Set(1, "temperature", "90");

#ifndef TESTS_SUPPORT_DRIVER_SCRIPT_H_
#define TESTS_SUPPORT_DRIVER_SCRIPT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/support/scripted_driver.h"

namespace berth::testing {

class DriverScript {
 public:
  // With so many sound devices, each with a GiB, and NVLink from each to each.
  explicit DriverScript(int devices);
  DriverScript(const DriverScript&) = delete;
  DriverScript& operator=(const DriverScript&) = delete;
  ~DriverScript();

  // Whether the daemon that is built here calls CUDA at all: without CUDA's headers it does not.
  static bool IsOfUse();
  static std::string UuidOf(int device);

  // What the script says from now on; nothing for an empty value. Several keys at once change at once.
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

#endif  // TESTS_SUPPORT_DRIVER_SCRIPT_H_
