// Modules: sources that are compiled once on a node, however many processes want them.
//
//   auto compiled = berth::CompileModule(session, "sphere", device, {.code = kSource, .options = {"--use_fast_math"}});
//   auto module = berth::LoadedModule::Load("sphere", device, *compiled);
//   CUfunction function = static_cast<CUfunction>(*module->Function("Sphere"));
//
// A node keeps what its tenants' processes have compiled (proto/berth/v1/module.proto). Whatever keeps it from giving
// one, the process compiles for itself: only a source that does not compile is an error, and a compiler that is not
// there.

#ifndef CLIENT_MODULE_H_
#define CLIENT_MODULE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cancellation.h"
#include "client/module_compiler.h"
#include "client/probed_device.h"
#include "client/session.h"

namespace berth {

namespace internal {
class ModuleBytes;
}  // namespace internal

// A compiled module. Copies share its bytes, which stay as long as one of them does. Thread-safe to copy.
class CompiledModule {
 public:
  enum class Origin {
    // The node had it, or another process of this tenant's has compiled it meanwhile.
    kNode,
    // Compiled here, and kept by the node.
    kCompiled,
    // Compiled here for this process alone; why() says why.
    kAlone,
  };

  // PTX, with a zero at its end as NVRTC makes it, or a cubin.
  absl::string_view bytes() const;
  const std::string& architecture() const { return architecture_; }
  Origin origin() const { return origin_; }
  // Why the node has no part in it: of kAlone.
  const absl::Status& why() const { return why_; }

  // The SDK's own.
  CompiledModule(std::shared_ptr<const internal::ModuleBytes> bytes, std::string architecture, Origin origin,
                 absl::Status why = absl::OkStatus());

 private:
  std::shared_ptr<const internal::ModuleBytes> bytes_;
  std::string architecture_;
  Origin origin_;
  absl::Status why_;
};

struct ModuleOptions {
  // NVRTC where it is null. Must outlive the call.
  ModuleCompiler* compiler = nullptr;
  // How long to wait while another process compiles it, before it is compiled here.
  absl::Duration max_wait = absl::Minutes(1);
  // Ends the wait (kCancelled); may be null. Must outlive the call.
  Cancellation* cancellation = nullptr;
};

// The module of `source`, from the node or compiled here. A source that includes files by itself (DependsOnItselfAlone)
// is compiled each time. Thread-safe.
// Errors: INVALID_FIELD "{label} NVRTC compile failed: {value}" with the compiler's log, its first 2,000 bytes;
// INVALID_FIELD for the label (1 to 128 printable bytes), for no source, and for options about the architecture;
// UNSUPPORTED where there is no compiler; kCancelled. All but those of the label itself carry the figure `label`.
absl::StatusOr<CompiledModule> CompileModule(const std::shared_ptr<Session>& session, absl::string_view label,
                                             const ProbedDevice& device, const ModuleSource& source,
                                             const ModuleOptions& options = {});

// A module in a device's context, until this goes. Move-only; thread-compatible.
class LoadedModule {
 public:
  // Errors: DRIVER "{label} module load failed: {why}"; UNSUPPORTED on a host device.
  static absl::StatusOr<LoadedModule> Load(absl::string_view label, const ProbedDevice& device,
                                           const CompiledModule& module);
  LoadedModule(LoadedModule&& other) noexcept;
  LoadedModule& operator=(LoadedModule&& other) noexcept;
  ~LoadedModule();

  // A CUfunction, good as long as this. Errors: DRIVER.
  absl::StatusOr<void*> Function(const std::string& name) const;

 private:
  LoadedModule(std::string label, std::shared_ptr<ProbedStream> stream, void* module)
      : label_(std::move(label)), stream_(std::move(stream)), module_(module) {}
  void Unload();

  std::string label_;
  std::shared_ptr<ProbedStream> stream_;
  // A CUmodule; null once moved from.
  void* module_;
};

}  // namespace berth

#endif  // CLIENT_MODULE_H_
