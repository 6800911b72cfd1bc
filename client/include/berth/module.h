// Modules: GPU sources compiled once per node, for all processes that use them.
//
//   auto compiled = berth::CompileModule(session, "sphere", device, {.code = kSource, .options = {"--use_fast_math"}});
//   auto module = berth::LoadedModule::Load("sphere", device, *compiled);
//   CUfunction function = static_cast<CUfunction>(*module->Function("Sphere"));
//
// The daemon caches modules that its tenants' processes have compiled (proto/berth/v1/module.proto). If the daemon
// cannot supply one, for any reason, the process compiles it itself. Only a source that does not compile and a missing
// compiler are errors.

#ifndef BERTH_MODULE_H_
#define BERTH_MODULE_H_

#include <memory>
#include <string>
#include <utility>

#include <berth/cancellation.h>
#include <berth/module_compiler.h>
#include <berth/probed_device.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth {

namespace internal {
class ModuleBytes;
}  // namespace internal

// A compiled module. Copies share the bytes, which live as long as the last copy. Thread-safe to copy.
class CompiledModule {
 public:
  enum class Origin {
    // The daemon had the module, or another process of this tenant compiled it meanwhile.
    kNode,
    // Compiled here, and stored by the daemon.
    kCompiled,
    // Compiled here, for this process alone; why() gives the reason.
    kAlone,
  };

  // PTX with a terminating zero, as NVRTC makes it, or a cubin.
  absl::string_view bytes() const;
  const std::string& architecture() const { return architecture_; }
  Origin origin() const { return origin_; }
  // Why the daemon did not take part; set if origin() is kAlone.
  const absl::Status& why() const { return why_; }

  // For internal use by the SDK.
  CompiledModule(std::shared_ptr<const internal::ModuleBytes> bytes, std::string architecture, Origin origin,
                 absl::Status why = absl::OkStatus());

 private:
  std::shared_ptr<const internal::ModuleBytes> bytes_;
  std::string architecture_;
  Origin origin_;
  absl::Status why_;
};

struct ModuleOptions {
  // Null: NVRTC. Must outlive the call.
  ModuleCompiler* compiler = nullptr;
  // How long to wait while another process compiles the module, before compiling it here.
  absl::Duration max_wait = absl::Minutes(1);
  // Ends the wait (kCancelled); may be null. Must outlive the call.
  Cancellation* cancellation = nullptr;
};

// Returns the module of `source`, from the daemon or compiled here. A source that includes files of its own (see
// DependsOnItselfAlone) is compiled each time. Thread-safe.
// Errors: INVALID_FIELD "{label} NVRTC compile failed: {value}" with the first 2,000 bytes of the compiler's log;
// INVALID_FIELD for an empty label, for an empty source, and for options that name the architecture; UNSUPPORTED
// without a compiler; kCancelled. All errors except those about the label itself carry the named value `label`.
absl::StatusOr<CompiledModule> CompileModule(const std::shared_ptr<Session>& session, absl::string_view label,
                                             const ProbedDevice& device, const ModuleSource& source,
                                             const ModuleOptions& options = {});

// A module loaded in a device's context; the destructor unloads it. Move-only; thread-compatible.
class LoadedModule {
 public:
  // Errors: DRIVER "{label} module load failed: {why}"; UNSUPPORTED on a host device.
  static absl::StatusOr<LoadedModule> Load(absl::string_view label, const ProbedDevice& device,
                                           const CompiledModule& module);
  LoadedModule(LoadedModule&& other) noexcept;
  LoadedModule& operator=(LoadedModule&& other) noexcept;
  ~LoadedModule();

  // Returns a CUfunction, valid as long as this object. Errors: DRIVER.
  absl::StatusOr<void*> Function(const std::string& name) const;

 private:
  LoadedModule(std::string label, std::shared_ptr<ProbedStream> stream, void* module)
      : label_(std::move(label)), stream_(std::move(stream)), module_(module) {}
  void Unload();

  std::string label_;
  std::shared_ptr<ProbedStream> stream_;
  // A CUmodule; null after a move.
  void* module_;
};

}  // namespace berth

#endif  // BERTH_MODULE_H_
