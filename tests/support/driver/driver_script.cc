#include "tests/support/driver/driver_script.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Values that all devices share.
constexpr std::pair<const char*, const char*> kSound[] = {
    {"name", "NVIDIA H200"},  {"total", "1073741824"},         {"free", "1073741824"},
    {"capability", "90"},     {"multiprocessors", "132"},      {"slowdown_temperature", "87"},
    {"power", "75000"},       {"power_limit", "700000"},       {"clock", "1980"},
    {"max_clock", "1980"},    {"memory_clock", "3201"},        {"utilisation", "7"},
    {"ecc_mode", "1"},        {"memory_utilisation", "3"},     {"corrected_errors", "0"},
    {"mig_mode", "0"},        {"uncorrected_errors", "0"},     {"nvlinks", "18"},
};

// Creates a new folder, which another user's client may enter, too.
std::string NewPath() {
  char folder[] = "/tmp/berth-driver-XXXXXX";
  if (::mkdtemp(folder) == nullptr || ::chmod(folder, 0755) < 0) {
    Fatal(absl::InternalError("mkdtemp, chmod"), folder);
  }
  return absl::StrCat(folder, "/driver");
}

ScriptedCounts* MapCounts(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ::fchmod(fd, 0666) == 0 && ::ftruncate(fd, sizeof(ScriptedCounts)) == 0) {
    memory = ::mmap(nullptr, sizeof(ScriptedCounts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  ::close(fd);
  if (memory == MAP_FAILED) Fatal(absl::InternalError("no place for counts"), path);
  return static_cast<ScriptedCounts*>(memory);
}

}  // namespace

bool DriverScript::IsOfUse() {
  Subprocess version = Subprocess::Start({.argv = {ProgramPath("daemon/berthd"), "--version"}});
  return !absl::StrContains(version.ReadAll(), "no CUDA headers");
}

std::string DriverScript::UuidOf(int device) {
  return absl::StrFormat("GPU-%08x-0000-0000-0000-00000000be27", device);
}

DriverScript::DriverScript(int devices) : path_(NewPath()), counts_(MapCounts(path_ + ".counts")) {
  values_["devices"] = absl::StrCat(devices);
  for (int device = 0; device < devices; ++device) {
    const std::string prefix = absl::StrCat(device, ".");
    for (const auto& [key, value] : kSound) values_[absl::StrCat(prefix, key)] = value;
    values_[prefix + "uuid"] = UuidOf(device);
    values_[prefix + "pci"] = absl::StrFormat("00000000:%02X:00.0", device + 1);
    values_[prefix + "temperature"] = absl::StrCat(40 + device);
    for (int peer = 0; peer < devices; ++peer) {
      if (peer != device) values_[absl::StrCat(prefix, "peer.", peer)] = "nvlink";
    }
  }
  Write();
}

DriverScript::~DriverScript() {
  std::filesystem::remove_all(std::filesystem::path(path_).parent_path());
  ::munmap(counts_, sizeof(ScriptedCounts));
}

void DriverScript::Set(int device, absl::string_view key, const std::string& value) {
  SetAll({{absl::StrCat(device, ".", key), value}});
}

void DriverScript::SetAll(const std::map<std::string, std::string>& values) {
  for (const auto& [key, value] : values) {
    if (value.empty()) {
      values_.erase(key);
    } else {
      values_[key] = value;
    }
  }
  Write();
}

std::vector<std::string> DriverScript::environment() const {
  // Both lie in one folder.
  const std::filesystem::path library = ProgramPath("tests/support/driver/libcuda.so.1");
  ProgramPath("tests/support/driver/libnvidia-ml.so.1");
  std::vector<std::string> environment = {
      absl::StrCat("BERTH_TEST_DRIVER=", path_),
      absl::StrCat("LD_LIBRARY_PATH=", std::filesystem::absolute(library).parent_path().string())};
#ifndef BERTH_SANITIZED
  // A sanitizer must be the first library that is loaded.
  const std::filesystem::path pauses = ProgramPath("tests/support/driver/libshort_pauses.so");
  environment.push_back(absl::StrCat("LD_PRELOAD=", std::filesystem::canonical(pauses).string()));
#endif
  return environment;
}

void DriverScript::Write() const {
  // Replaces the file atomically: a process may read it at any time.
  const std::string next = path_ + ".next";
  {
    std::ofstream file(next);
    for (const auto& [key, value] : values_) file << key << " = " << value << "\n";
  }
  EXPECT_EQ(::rename(next.c_str(), path_.c_str()), 0);
}

}  // namespace berth::testing
