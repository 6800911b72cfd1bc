// MemoryHarness: lets tests open each kind of MemoryResource, alone and with the whole stack around it, and access the
// memory that it makes.

#ifndef DAEMON_DEVICE_MEMORY_TESTING_MEMORY_HARNESS_H_
#define DAEMON_DEVICE_MEMORY_TESTING_MEMORY_HARNESS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/device/memory/memory_resource.h"

namespace berth {

// Thread-safe, except for the harnesses of fake devices.
class MemoryHarness {
 public:
  // Returns a harness for every backend and every stack. The harnesses live as long as the process.
  static const std::vector<MemoryHarness*>& All();

  virtual ~MemoryHarness() = default;

  // Name; letters only.
  const std::string& name() const { return name_; }

  // Errors: UNSUPPORTED if this machine has no such device.
  virtual absl::StatusOr<std::unique_ptr<MemoryResource>> Open() = 0;
  // Reads `size` bytes of a block from `offset` on. For a block of another process only its bytes and its fd or handle
  // need be set.
  virtual absl::StatusOr<std::string> Read(const MemoryBlock& block, uint64_t offset, size_t size) = 0;
  virtual absl::Status Write(const MemoryBlock& block, uint64_t offset, absl::string_view text) = 0;
  // Returns whether the device is a fake, which no other process can reach.
  virtual bool is_fake() const { return false; }

 protected:
  explicit MemoryHarness(std::string name) : name_(std::move(name)) {}

 private:
  const std::string name_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_TESTING_MEMORY_HARNESS_H_
