// ModuleBytes: where a compiled module lies: in memory of this process's own, or in that which the node has sealed.

#ifndef CLIENT_INTERNAL_MODULE_BYTES_H_
#define CLIENT_INTERNAL_MODULE_BYTES_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/digest.h"
#include "common/unique_fd.h"

namespace berth::internal {

// Immutable.
class ModuleBytes {
 public:
  explicit ModuleBytes(std::string own) : own_(std::move(own)), bytes_(own_) {}
  // Maps what came from the node. Errors: kDataLoss where it is not sealed, or not of that size and content; the
  // system's.
  static absl::StatusOr<std::shared_ptr<const ModuleBytes>> Map(const UniqueFd& fd, size_t size,
                                                                const Digest& content);
  ModuleBytes(const ModuleBytes&) = delete;
  ModuleBytes& operator=(const ModuleBytes&) = delete;
  ~ModuleBytes();

  absl::string_view bytes() const { return bytes_; }

 private:
  ModuleBytes(const char* mapped, size_t size) : mapped_(mapped), bytes_(mapped, size) {}

  const std::string own_;
  // Null where the bytes are its own.
  const char* const mapped_ = nullptr;
  const absl::string_view bytes_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_MODULE_BYTES_H_
