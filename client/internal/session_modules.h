// SessionModules: the node's cache of compiled modules, as one process uses it.

#ifndef CLIENT_INTERNAL_SESSION_MODULES_H_
#define CLIENT_INTERNAL_SESSION_MODULES_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cancellation.h"
#include "client/internal/module_bytes.h"
#include "client/internal/session_core.h"
#include "common/digest.h"

namespace berth::internal {

// What is asked of the node.
struct ModuleWish {
  Digest key;
  std::string architecture;
  std::string compiler;
  std::string label;
  absl::Duration max_wait;
  Cancellation* cancellation = nullptr;
};

struct ObtainedModule {
  std::shared_ptr<const ModuleBytes> bytes;
  // Whether it was compiled here, and why the node has no part in it (not OK: it has none).
  bool compiled = false;
  absl::Status alone;
};

// Has the module from the node, or by `compile`, which is called at most once; for the node where that lets it.
// Errors: those of `compile`; INVALID_FIELD with the field "source" where another process has found that it does not
// compile; kCancelled.
absl::StatusOr<ObtainedModule> ObtainModule(SessionCore& core, const ModuleWish& wish,
                                            absl::FunctionRef<absl::StatusOr<std::string>()> compile);

// Whether `status` says that a source does not compile.
bool IsCompileError(const absl::Status& status);

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_SESSION_MODULES_H_
