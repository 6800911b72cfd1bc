// ModuleCompiler: compiles a source to a module. Usually NVRTC, loaded at first use.

#ifndef BERTH_MODULE_COMPILER_H_
#define BERTH_MODULE_COMPILER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace berth {

struct ModuleSource {
  std::string code;
  // The compiler's own options, such as "--use_fast_math"; none may name the architecture.
  std::vector<std::string> options;
  // "compute_90" makes PTX, "sm_90" a cubin. Empty: the device's architecture, by NvrtcArchitecture()
  // (berth/gpu_capability.h).
  std::string architecture;
};

// Thread-safe.
class ModuleCompiler {
 public:
  virtual ~ModuleCompiler() = default;
  // Returns the compiler's name and version, printable. Modules of different versions are distinct. Errors: UNSUPPORTED
  // without a compiler.
  virtual absl::StatusOr<std::string> Version() = 0;
  // Errors: UNSUPPORTED; INVALID_FIELD with the field "source" and the log as its value if the source does not compile;
  // DRIVER.
  virtual absl::StatusOr<std::string> Compile(const ModuleSource& source) = 0;
};

// Returns this process's NVRTC compiler.
ModuleCompiler& NvrtcCompiler();

// Returns whether the module depends only on the source, the options and the compiler, not on other files. True if no
// option names files or folders, and the source includes only <name>, which the compiler itself provides, never "name".
bool DependsOnItselfAlone(const ModuleSource& source);

}  // namespace berth

#endif  // BERTH_MODULE_COMPILER_H_
