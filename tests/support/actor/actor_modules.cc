#include "tests/support/actor/actor_modules.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include <berth/error.h>
#include <berth/module.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"

namespace berth::testing {
namespace {

// Returns the given code, or behaves as the test's options request.
class TestCompiler final : public ModuleCompiler {
 public:
  std::string count;
  std::string hold;
  std::string version = "test 1";
  uint64_t bytes = 0;

  absl::StatusOr<std::string> Version() override { return version; }

  absl::StatusOr<std::string> Compile(const ModuleSource& source) override {
    if (!count.empty()) {
      const UniqueFd file(::open(count.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
      const std::string line = absl::StrCat(::getpid(), "\n");
      if (::write(file.get(), line.data(), line.size()) < 0) return OsError(count, errno);
    }
    if (!hold.empty()) {
      // Blocks until another process opens the other end.
      const UniqueFd fifo(::open(hold.c_str(), O_RDONLY | O_CLOEXEC));
      if (!fifo) return OsError(hold, errno);
    }
    if (source.code == "bad") {
      return Refuse(Reason::kInvalidField, "{field} does not compile for {limit}: {value}",
                    {{"field", "source"}, {"limit", source.architecture}, {"value", "line 1:\n\tit is bad"}});
    }
    std::string module = absl::StrCat(source.architecture, ":", source.code, ":", version);
    module.resize(std::max<size_t>(module.size(), bytes), '.');
    return module;
  }
};

std::pair<std::string, std::string> ReadOption(const std::string& word) {
  return absl::StrSplit(word, absl::MaxSplits('=', 1));
}

}  // namespace

absl::StatusOr<std::string> ActorModules::Do(const std::string& verb, const std::vector<std::string>& words) {
  if (verb == "probe" && !words.empty()) return Probe(words);
  if (verb == "module" && words.size() >= 2) return Module(words);
  return absl::UnimplementedError(verb);
}

Prober& ActorModules::ProberOf(DevicePolicy policy) {
  std::shared_ptr<Prober>& prober = probers_[policy];
  if (prober == nullptr) prober = Prober::Create(session_, {.policy = policy, .host_devices = true});
  return *prober;
}

absl::StatusOr<std::string> ActorModules::Probe(const std::vector<std::string>& words) {
  DevicePolicy policy = DevicePolicy::kAuto;
  ProbeTarget target;
  bool again = false;
  for (size_t i = 1; i < words.size(); ++i) {
    const auto [name, value] = ReadOption(words[i]);
    if (uint32_t number; name == "device" && absl::SimpleAtoi(value, &number)) target.device = number;
    if (name == "uuid") target.device_uuid = value;
    if (name == "required") policy = DevicePolicy::kRequired;
    if (name == "off") policy = DevicePolicy::kOff;
    again = again || name == "again";
  }
  // The word "-" stands for an empty label.
  const std::string label = words[0] == "-" ? "" : words[0];
  Prober& prober = ProberOf(policy);
  BERTH_ASSIGN_OR_RETURN(const OrAbsent<ProbedDevice> probed,
                         again ? prober.ProbeAgain(label, target) : prober.Probe(label, target));
  if (!probed.present()) return absl::StrCat("absent ", AbsenceName(probed.absence().kind));
  BERTH_RETURN_IF_ERROR(probed.value().stream->Synchronize());
  return absl::StrCat(probed.value().uuid,
                      probed.value().health == DeviceHealth::kReady ? " ready" : " rebuilding");
}

absl::StatusOr<std::string> ActorModules::Module(const std::vector<std::string>& words) {
  TestCompiler compiler;
  ModuleOptions options = {.compiler = &compiler};
  ModuleSource source = {.code = words[1]};
  for (size_t i = 2; i < words.size(); ++i) {
    const auto [name, value] = ReadOption(words[i]);
    int64_t number = 0;
    if (name == "count") compiler.count = value;
    if (name == "hold") compiler.hold = value;
    if (name == "version") compiler.version = value;
    if (name == "bytes" && absl::SimpleAtoi(value, &number)) compiler.bytes = static_cast<uint64_t>(number);
    if (name == "wait_ms" && absl::SimpleAtoi(value, &number)) options.max_wait = absl::Milliseconds(number);
    if (name == "option") source.options.push_back(value);
  }
  const absl::StatusOr<OrAbsent<CompiledModule>> module =
      ProbeAndBuild(ProberOf(DevicePolicy::kAuto), words[0], [&](const ProbedDevice& device) {
        return CompileModule(session_, words[0], device, source, options);
      });
  BERTH_RETURN_IF_ERROR(module.status());
  if (!module->present()) return absl::StrCat("absent ", AbsenceName(module->absence().kind));
  const CompiledModule& made = module->value();
  const char* const origin = made.origin() == CompiledModule::Origin::kNode       ? "node"
                             : made.origin() == CompiledModule::Origin::kCompiled ? "compiled"
                                                                                  : "alone";
  return absl::StrCat(origin, " ", made.bytes().substr(0, 60));
}

}  // namespace berth::testing
