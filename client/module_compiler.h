// ModuleCompiler: what makes a module of a source. As a rule NVRTC, which is loaded when it is first needed.

#ifndef CLIENT_MODULE_COMPILER_H_
#define CLIENT_MODULE_COMPILER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace berth {

struct ModuleSource {
  std::string code;
  // The compiler's own, as "--use_fast_math"; none about the architecture.
  std::vector<std::string> options;
  // "compute_90" makes PTX, "sm_90" a cubin. Empty: the device's, by NvrtcArchitecture() (common/gpu_capability.h).
  std::string architecture;
};

// Thread-safe.
class ModuleCompiler {
 public:
  virtual ~ModuleCompiler() = default;
  // Its name and version, printable: modules of another version are others. Errors: UNSUPPORTED where there is none.
  virtual absl::StatusOr<std::string> Version() = 0;
  // Errors: UNSUPPORTED; INVALID_FIELD with the field "source" and the log as its value for a source that does not
  // compile; DRIVER.
  virtual absl::StatusOr<std::string> Compile(const ModuleSource& source) = 0;
};

// The one of this process.
ModuleCompiler& NvrtcCompiler();

// Whether the module depends on the source, the options and the compiler alone, and not on files that it includes: no
// option names files or folders, and nothing is included by "name", but by <name>, which is the compiler's own then.
bool DependsOnItselfAlone(const ModuleSource& source);

}  // namespace berth

#endif  // CLIENT_MODULE_COMPILER_H_
