#include <berth/module_compiler.h>

#include "absl/strings/match.h"
#include "client/sdk/modules/include_scan.h"
#include "common/cuda/nvrtc.h"

namespace berth {
namespace {

class Nvrtc final : public ModuleCompiler {
 public:
  absl::StatusOr<std::string> Version() override { return cuda::NvrtcVersion(); }
  absl::StatusOr<std::string> Compile(const ModuleSource& source) override {
    return cuda::Compile(source.code, source.architecture, source.options);
  }
};

}  // namespace

ModuleCompiler& NvrtcCompiler() {
  static auto* const kNvrtc = new Nvrtc;
  return *kNvrtc;
}

bool DependsOnItselfAlone(const ModuleSource& source) {
  for (const std::string& option : source.options) {
    for (const char* const file : {"-I", "--include-path", "-include", "--pre-include", "--options-file", "-optf",
                                   "--use-pch", "--pch", "-pch"}) {
      if (absl::StartsWith(option, file)) return false;
    }
  }
  return internal::IncludesOnlyTheCompilersOwn(source.code);
}

}  // namespace berth
