#include "client/module_compiler.h"

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
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

// Whether a line of a source includes what is not the compiler's own.
bool IncludesAFile(absl::string_view line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  if (!absl::ConsumePrefix(&line, "#")) return false;
  line = absl::StripLeadingAsciiWhitespace(line);
  if (!absl::ConsumePrefix(&line, "include")) return false;
  absl::ConsumePrefix(&line, "_next");
  return !absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "<");
}

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
  for (const absl::string_view line : absl::StrSplit(source.code, '\n')) {
    if (IncludesAFile(line)) return false;
  }
  return true;
}

}  // namespace berth
