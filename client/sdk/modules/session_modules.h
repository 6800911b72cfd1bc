// SessionModules: a process's use of the node's cache of compiled modules.

#ifndef CLIENT_SDK_MODULES_SESSION_MODULES_H_
#define CLIENT_SDK_MODULES_SESSION_MODULES_H_

#include <memory>
#include <string>

#include <berth/cancellation.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/sdk/modules/module_bytes.h"
#include "client/sdk/transport/session_core.h"
#include "common/digest.h"

namespace berth::internal {

// A request to the node for a module.
struct WantedModule {
  Digest key;
  std::string architecture;
  std::string compiler;
  std::string label;
  absl::Duration max_wait;
  Cancellation* cancellation = nullptr;
};

struct ObtainedModule {
  std::shared_ptr<const ModuleBytes> bytes;
  // Whether this process compiled the module, and the reason why the node took no part; OK where it did.
  bool compiled = false;
  absl::Status alone;
};

// Returns the module from the node or from `compile`, which is called at most once. Stores a compiled module with the
// node where the node permits that.
// Errors: those of `compile`; INVALID_FIELD with the field "source" where another process has found that the source
// does not compile; kCancelled.
absl::StatusOr<ObtainedModule> ObtainModule(SessionCore& core, const WantedModule& wanted,
                                            absl::FunctionRef<absl::StatusOr<std::string>()> compile);

// Whether `status` means that a source does not compile.
bool IsCompileError(const absl::Status& status);

}  // namespace berth::internal

#endif  // CLIENT_SDK_MODULES_SESSION_MODULES_H_
