#include "tests/support/driver/scripted_driver.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <numeric>

namespace berth::testing {
namespace {

std::string Path() {
  const char* const path = getenv("BERTH_TEST_DRIVER");
  return path == nullptr ? "" : path;
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::string KeyOf(int device, const std::string& key) { return std::to_string(device) + "." + key; }

}  // namespace

std::shared_ptr<const ScriptedDriver> ScriptedDriver::Now() {
  static std::mutex mu;
  static struct stat seen = {};
  static std::shared_ptr<const ScriptedDriver> latest = std::make_shared<ScriptedDriver>();
  const std::lock_guard lock(mu);
  struct stat now = {};
  // A file that was written beside and renamed has another inode.
  const bool there = ::stat(Path().c_str(), &now) == 0;
  if (!there || (now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
                 now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)) {
    return latest;
  }
  seen = now;
  auto read = std::make_shared<ScriptedDriver>();
  std::ifstream file(Path());
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = Trimmed(line.substr(0, equals));
    const std::string value = Trimmed(line.substr(equals + 1));
    if (key.ends_with(".uuid")) read->by_uuid_[value] = atoi(key.c_str());
    read->values_[key] = value;
  }
  latest = std::move(read);
  return latest;
}

ScriptedCounts& ScriptedDriver::Counts() {
  static ScriptedCounts* const counts = [] {
    static ScriptedCounts nobodys;
    const int fd = ::open((Path() + ".counts").c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return &nobodys;
    void* const memory = ::mmap(nullptr, sizeof(ScriptedCounts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    return memory == MAP_FAILED ? &nobodys : static_cast<ScriptedCounts*>(memory);
  }();
  return *counts;
}

const std::string& ScriptedDriver::Get(const std::string& key) const {
  static const std::string kNothing;
  const auto found = values_.find(key);
  return found == values_.end() ? kNothing : found->second;
}

const std::string& ScriptedDriver::Get(int device, const std::string& key) const { return Get(KeyOf(device, key)); }

uint64_t ScriptedDriver::Number(const std::string& key, uint64_t otherwise) const {
  const std::string& value = Get(key);
  return value.empty() ? otherwise : strtoull(value.c_str(), nullptr, 10);
}

uint64_t ScriptedDriver::Number(int device, const std::string& key, uint64_t otherwise) const {
  return Number(KeyOf(device, key), otherwise);
}

std::vector<int> ScriptedDriver::InPciOrder() const {
  std::vector<int> order(static_cast<size_t>(devices()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [this](int device) { return Get(device, "pci"); });
  return order;
}

int ScriptedDriver::Find(const std::string& uuid) const {
  const auto found = by_uuid_.find(uuid);
  return found == by_uuid_.end() ? -1 : found->second;
}

int ScriptedDriver::ErrorIn(const std::string& value) {
  return !value.empty() && value[0] == '!' ? atoi(value.c_str() + 1) : 0;
}

void HangIfScripted(int device, const std::string& call) {
  while (true) {
    const std::string hangs = ScriptedDriver::Now()->Get(device, "hangs");
    if (hangs != "all" && hangs != call) return;
    ::poll(nullptr, 0, 10);
  }
}

}  // namespace berth::testing
