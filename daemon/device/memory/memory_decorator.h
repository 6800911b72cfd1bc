// MemoryDecorator: a MemoryResource around another, to which it forwards every call. Subclasses override the methods
// that they extend.

#ifndef DAEMON_DEVICE_MEMORY_MEMORY_DECORATOR_H_
#define DAEMON_DEVICE_MEMORY_MEMORY_DECORATOR_H_

#include <memory>
#include <string>
#include <utility>

#include "daemon/device/memory/memory_resource.h"

namespace berth {

class MemoryDecorator : public MemoryResource {
 public:
  explicit MemoryDecorator(std::unique_ptr<MemoryResource> inner) : inner_(std::move(inner)) {}

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override {
    return inner_->Allocate(bytes, tag);
  }
  absl::Status Deallocate(MemoryBlock& block) override { return inner_->Deallocate(block); }
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override { return inner_->HandOver(block); }
  absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) override {
    return inner_->Adopt(std::move(fd), tag);
  }
  absl::Status Fill(const MemoryBlock& block, uint8_t value) override { return inner_->Fill(block, value); }
  absl::Status Reap() override { return inner_->Reap(); }
  Bytes outstanding() const override { return inner_->outstanding(); }
  Bytes granularity() const override { return inner_->granularity(); }
  BackendKind kind() const override { return inner_->kind(); }
  const std::string& device() const override { return inner_->device(); }

 protected:
  MemoryResource& inner() { return *inner_; }

 private:
  const std::unique_ptr<MemoryResource> inner_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_MEMORY_DECORATOR_H_
