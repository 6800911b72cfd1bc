#include <berth/module.h>

#include <algorithm>
#include <utility>

#include <berth/error.h>
#include <berth/gpu_capability.h>
#include <berth/probe.h>

#include "absl/strings/match.h"
#include "client/sdk/modules/module_bytes.h"
#include "client/sdk/modules/session_modules.h"
#include "common/cuda/current_context.h"
#include "common/cuda/driver.h"
#include "common/label.h"
#include "common/sha256.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// Digests everything that the module depends on, and nothing else.
Digest KeyOf(const ModuleSource& source, const std::string& compiler) {
  Sha256OfFields fields;
  // Version of this field layout.
  fields.Add("berth module 1").Add(source.code).Add(uint64_t{source.options.size()});
  for (const std::string& option : source.options) fields.Add(option);
  return fields.Add(source.architecture).Add(compiler).Finish();
}

absl::Status CheckSource(const ModuleSource& source) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("architecture", source.architecture));
  if (source.code.empty()) {
    return Refuse(Reason::kInvalidField, "{field}: {value} bytes, the least is {limit}",
                  {{"field", "code"}, {"value", 0}, {"limit", 1}});
  }
  for (const std::string& option : source.options) {
    if (!absl::StartsWith(option, "--gpu-architecture") && !absl::StartsWith(option, "-arch")) continue;
    return Refuse(Reason::kInvalidField, "invalid {field} \"{value}\": the architecture is {limit}",
                  {{"field", "options"}, {"value", ToLabel(option)}, {"limit", "a field of its own"}});
  }
  return absl::OkStatus();
}

// Returns `status`, as the documented message if it is a compile error.
absl::Status Say(absl::string_view label, const ModuleSource& source, const absl::Status& status) {
  if (!internal::IsCompileError(status)) return internal::WithLabel(status, label);
  return Refuse(Reason::kInvalidField, "{label} NVRTC compile failed: {value}",
                {{"label", label},
                 {"value", GetErrorDetails(status)->metadata["value"]},
                 {"field", "source"},
                 {"limit", source.architecture}});
}

absl::Status LoadFailed(absl::string_view label, const absl::Status& status) {
  std::vector<NamedValue> named_values = {{"label", label}, {"why", std::string(status.message())}};
  if (const auto details = GetErrorDetails(status)) {
    for (const auto& [name, value] : details->metadata) {
      if (name != "label" && name != "why") named_values.emplace_back(name, value);
    }
  }
  return Refuse(Reason::kDriver, "{label} module load failed: {why}", named_values);
}

}  // namespace

CompiledModule::CompiledModule(std::shared_ptr<const internal::ModuleBytes> bytes, std::string architecture,
                               Origin origin, absl::Status why)
    : bytes_(std::move(bytes)), architecture_(std::move(architecture)), origin_(origin), why_(std::move(why)) {}

absl::string_view CompiledModule::bytes() const { return bytes_->bytes(); }

absl::StatusOr<CompiledModule> CompileModule(const std::shared_ptr<Session>& session, absl::string_view text,
                                             const ProbedDevice& device, const ModuleSource& asked,
                                             const ModuleOptions& options) {
  ModuleSource source = asked;
  if (source.architecture.empty()) source.architecture = NvrtcArchitecture(device.capability);
  BERTH_ASSIGN_OR_RETURN(const std::string label, internal::CleanLabel(text));
  if (absl::Status wrong = CheckSource(source); !wrong.ok()) return internal::WithLabel(std::move(wrong), label);
  ModuleCompiler& compiler = options.compiler != nullptr ? *options.compiler : NvrtcCompiler();
  const absl::StatusOr<std::string> version = compiler.Version();
  if (!version.ok()) return Say(label, source, version.status());
  const auto compile = [&] { return compiler.Compile(source); };
  absl::StatusOr<internal::ObtainedModule> obtained;
  if (DependsOnItselfAlone(source)) {
    obtained = internal::ObtainModule(*session->core(),
                                      {.key = KeyOf(source, *version),
                                       .architecture = source.architecture,
                                       .compiler = ToLabel(*version),
                                       .label = label,
                                       .max_wait = std::max(options.max_wait, absl::ZeroDuration()),
                                       .cancellation = options.cancellation},
                                      compile);
  } else {
    absl::StatusOr<std::string> made = compile();
    if (!made.ok()) return Say(label, source, made.status());
    obtained = internal::ObtainedModule{
        .bytes = std::make_shared<const internal::ModuleBytes>(*std::move(made)),
        .compiled = true,
        .alone = absl::FailedPreconditionError("the source includes files, which the node cannot read")};
  }
  if (!obtained.ok()) return Say(label, source, obtained.status());
  const CompiledModule::Origin origin = !obtained->compiled    ? CompiledModule::Origin::kNode
                                        : obtained->alone.ok() ? CompiledModule::Origin::kCompiled
                                                               : CompiledModule::Origin::kAlone;
  return CompiledModule(std::move(obtained->bytes), std::move(source.architecture), origin,
                        std::move(obtained->alone));
}

absl::StatusOr<LoadedModule> LoadedModule::Load(absl::string_view label, const ProbedDevice& device,
                                                const CompiledModule& module) {
  cuda::Driver* const driver = device.stream->driver();
  if (driver == nullptr) {
    return Refuse(Reason::kUnsupported, "{label} module load failed: device {ordinal} is host memory: no {capability}",
                  {{"label", label}, {"ordinal", device.device}, {"capability", "CUDA"}});
  }
  const absl::StatusOr<internal::StreamScope> scope = internal::StreamScope::Enter(*device.stream);
  if (!scope.ok()) return LoadFailed(label, scope.status());
  const absl::StatusOr<cuda::Module> loaded = driver->LoadModule(std::string(module.bytes()));
  if (!loaded.ok()) return LoadFailed(label, loaded.status());
  return LoadedModule(std::string(label), device.stream, *loaded);
}

LoadedModule::LoadedModule(LoadedModule&& other) noexcept
    : label_(std::move(other.label_)),
      stream_(std::move(other.stream_)),
      module_(std::exchange(other.module_, nullptr)) {}

LoadedModule& LoadedModule::operator=(LoadedModule&& other) noexcept {
  if (this == &other) return *this;
  Unload();
  label_ = std::move(other.label_);
  stream_ = std::move(other.stream_);
  module_ = std::exchange(other.module_, nullptr);
  return *this;
}

LoadedModule::~LoadedModule() { Unload(); }

void LoadedModule::Unload() {
  if (stream_ == nullptr) return;
  const absl::StatusOr<internal::StreamScope> scope = internal::StreamScope::Enter(*stream_);
  if (scope.ok()) stream_->driver()->UnloadModule(static_cast<cuda::Module>(module_)).IgnoreError();
  stream_.reset();
}

absl::StatusOr<void*> LoadedModule::Function(const std::string& name) const {
  const absl::StatusOr<internal::StreamScope> scope = internal::StreamScope::Enter(*stream_);
  if (!scope.ok()) return internal::WithLabel(scope.status(), label_);
  const absl::StatusOr<cuda::Function> function =
      stream_->driver()->GetFunction(static_cast<cuda::Module>(module_), name);
  if (!function.ok()) return internal::WithLabel(function.status(), label_);
  return static_cast<void*>(*function);
}

}  // namespace berth
