// ModuleBytes: the bytes of a compiled module, in this process's own memory or in memory that the node has sealed.

#ifndef CLIENT_SDK_MODULES_MODULE_BYTES_H_
#define CLIENT_SDK_MODULES_MODULE_BYTES_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/digest.h"
#include "common/os/unique_fd.h"

namespace berth::internal {

// Immutable.
class ModuleBytes {
 public:
  explicit ModuleBytes(std::string own) : own_(std::move(own)), bytes_(own_) {}
  // Maps a module from the node. Errors: kDataLoss where the memory is not sealed, or has another size or content;
  // those of the system.
  static absl::StatusOr<std::shared_ptr<const ModuleBytes>> Map(const UniqueFd& fd, size_t size,
                                                                const Digest& content);
  ModuleBytes(const ModuleBytes&) = delete;
  ModuleBytes& operator=(const ModuleBytes&) = delete;
  ~ModuleBytes();

  absl::string_view bytes() const { return bytes_; }

 private:
  ModuleBytes(const char* mapped, size_t size) : mapped_(mapped), bytes_(mapped, size) {}

  const std::string own_;
  // Null where `own_` holds the bytes.
  const char* const mapped_ = nullptr;
  const absl::string_view bytes_;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_MODULES_MODULE_BYTES_H_
