#include "common/cuda/nvrtc.h"

#include <dlfcn.h>

#include <memory>
#include <vector>

#include <berth/error.h>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/label.h"
#include "common/mutex.h"
#include "common/status_macros.h"

namespace berth::cuda {
namespace {

// Declarations of NVRTC, as in nvrtc.h of the toolkit.
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kCompilationFailed = 6;
using Program = struct _nvrtcProgram*;

constexpr size_t kMaxLogBytes = 2000;

struct Functions {
  const char* (*get_error_string)(Result) = nullptr;
  Result (*version)(int* major, int* minor) = nullptr;
  Result (*create)(Program*, const char* source, const char* name, int header_count,
                   const char* const* headers, const char* const* header_names) = nullptr;
  Result (*destroy)(Program*) = nullptr;
  Result (*compile)(Program, int option_count, const char* const* options) = nullptr;
  Result (*get_log_size)(Program, size_t*) = nullptr;
  Result (*get_log)(Program, char*) = nullptr;
  Result (*get_ptx_size)(Program, size_t*) = nullptr;
  Result (*get_ptx)(Program, char*) = nullptr;
  Result (*get_cubin_size)(Program, size_t*) = nullptr;
  Result (*get_cubin)(Program, char*) = nullptr;
};

template <typename F>
bool Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(::dlsym(library, name));
  return *function != nullptr;
}

absl::Status Absent(absl::string_view why) {
  return Refuse(Reason::kUnsupported, "no {capability}: {why}", {{"capability", "NVRTC"}, {"why", why}});
}

absl::StatusOr<std::unique_ptr<Functions>> Load() {
  void* library = nullptr;
  // Newest first; the plain name is a development package's.
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"}) {
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) return Absent(::dlerror());
  auto functions = std::make_unique<Functions>();
  if (!Find(library, "nvrtcGetErrorString", &functions->get_error_string) ||
      !Find(library, "nvrtcVersion", &functions->version) ||
      !Find(library, "nvrtcCreateProgram", &functions->create) ||
      !Find(library, "nvrtcDestroyProgram", &functions->destroy) ||
      !Find(library, "nvrtcCompileProgram", &functions->compile) ||
      !Find(library, "nvrtcGetProgramLogSize", &functions->get_log_size) ||
      !Find(library, "nvrtcGetProgramLog", &functions->get_log) ||
      !Find(library, "nvrtcGetPTXSize", &functions->get_ptx_size) ||
      !Find(library, "nvrtcGetPTX", &functions->get_ptx) ||
      !Find(library, "nvrtcGetCUBINSize", &functions->get_cubin_size) ||
      !Find(library, "nvrtcGetCUBIN", &functions->get_cubin)) {
    return Absent("libnvrtc is too old");
  }
  return functions;
}

absl::StatusOr<const Functions*> GetFunctions() {
  static Mutex mu(absl::kConstInit);
  static const Functions* loaded ABSL_GUARDED_BY(mu) = nullptr;
  MutexLock lock(&mu);
  if (loaded == nullptr) {
    BERTH_ASSIGN_OR_RETURN(std::unique_ptr<Functions> functions, Load());
    loaded = functions.release();
  }
  return loaded;
}

absl::Status Error(const Functions& nvrtc, absl::string_view call, Result result) {
  return Refuse(Reason::kDriver, "{call}: {name} ({driver_code})",
                {{"call", call}, {"name", nvrtc.get_error_string(result)}, {"driver_code", result}});
}

// Returns the result of a "size of it" and "it" pair of functions for `program`.
absl::StatusOr<std::string> Read(const Functions& nvrtc, absl::string_view call, Program program,
                                 Result (*get_size)(Program, size_t*), Result (*get)(Program, char*)) {
  size_t size = 0;
  if (const Result result = get_size(program, &size); result != kSuccess) return Error(nvrtc, call, result);
  std::string text(size, '\0');
  if (const Result result = get(program, text.data()); result != kSuccess) return Error(nvrtc, call, result);
  return text;
}

}  // namespace

absl::StatusOr<std::string> NvrtcVersion() {
  BERTH_ASSIGN_OR_RETURN(const Functions* const nvrtc, GetFunctions());
  int major = 0, minor = 0;
  const Result result = nvrtc->version(&major, &minor);
  if (result != kSuccess) return Error(*nvrtc, "nvrtcVersion", result);
  return absl::StrCat("NVRTC ", major, ".", minor);
}

absl::StatusOr<std::string> Compile(const std::string& source, const std::string& architecture,
                                    const std::vector<std::string>& more_options) {
  BERTH_ASSIGN_OR_RETURN(const Functions* const nvrtc, GetFunctions());
  Program program = nullptr;
  Result result = nvrtc->create(&program, source.c_str(), "source.cu", 0, nullptr, nullptr);
  if (result != kSuccess) return Error(*nvrtc, "nvrtcCreateProgram", result);
  const auto destroy = absl::MakeCleanup([&] { nvrtc->destroy(&program); });

  const std::string option = absl::StrCat("--gpu-architecture=", architecture);
  std::vector<const char*> options = {option.c_str()};
  for (const std::string& more : more_options) options.push_back(more.c_str());
  result = nvrtc->compile(program, static_cast<int>(options.size()), options.data());
  if (result == kCompilationFailed) {
    BERTH_ASSIGN_OR_RETURN(const std::string log,
                           Read(*nvrtc, "nvrtcGetProgramLog", program, nvrtc->get_log_size, nvrtc->get_log));
    return Refuse(
        Reason::kInvalidField, "{field} does not compile for {limit}: {value}",
        {{"field", "source"}, {"limit", architecture}, {"value", ToLog(log.c_str(), kMaxLogBytes)}});
  }
  if (result != kSuccess) return Error(*nvrtc, "nvrtcCompileProgram", result);
  if (absl::StartsWith(architecture, "sm_")) {
    return Read(*nvrtc, "nvrtcGetCUBIN", program, nvrtc->get_cubin_size, nvrtc->get_cubin);
  }
  return Read(*nvrtc, "nvrtcGetPTX", program, nvrtc->get_ptx_size, nvrtc->get_ptx);
}

}  // namespace berth::cuda
