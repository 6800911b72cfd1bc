// FakeResource: host memory whose calls can be made to fail, and whose frees can be delayed.

#ifndef DAEMON_DEVICE_MEMORY_TESTING_FAKE_RESOURCE_H_
#define DAEMON_DEVICE_MEMORY_TESTING_FAKE_RESOURCE_H_

#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "daemon/device/memory/host_backend.h"

namespace berth {

// Has 1 GiB. Thread-compatible.
class FakeResource : public HostBackend {
 public:
  FakeResource() : HostBackend("HOST-0", GiB(1)) {}

  // Errors that the next calls return.
  absl::Status allocate_error;
  absl::Status deallocate_error;
  absl::Status fill_error;
  absl::Status reap_error;
  // Whether freed memory stays outstanding until the next Reap().
  bool frees_late = false;
  // Reported address of the next block; 0 for none.
  uint64_t next_address = 0;
  // Names of the called methods, in order.
  std::vector<std::string> calls;

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override {
    calls.push_back("Allocate");
    BERTH_RETURN_IF_ERROR(allocate_error);
    BERTH_ASSIGN_OR_RETURN(MemoryBlock block, HostBackend::Allocate(bytes, tag));
    block.address = next_address;
    return block;
  }

  absl::Status Deallocate(MemoryBlock& block) override {
    calls.push_back("Deallocate");
    BERTH_RETURN_IF_ERROR(deallocate_error);
    const Bytes before = HostBackend::outstanding();
    BERTH_RETURN_IF_ERROR(HostBackend::Deallocate(block));
    if (frees_late) late_ += before.count() - HostBackend::outstanding().count();
    return absl::OkStatus();
  }

  absl::Status Fill(const MemoryBlock& block, uint8_t value) override {
    calls.push_back("Fill");
    BERTH_RETURN_IF_ERROR(fill_error);
    return HostBackend::Fill(block, value);
  }

  absl::Status Reap() override {
    calls.push_back("Reap");
    BERTH_RETURN_IF_ERROR(reap_error);
    late_ = 0;
    return absl::OkStatus();
  }

  Bytes outstanding() const override { return Bytes(HostBackend::outstanding().count() + late_); }

 private:
  uint64_t late_ = 0;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_TESTING_FAKE_RESOURCE_H_
