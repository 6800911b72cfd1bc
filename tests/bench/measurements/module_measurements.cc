#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <berth/module.h>
#include <berth/probe.h>
#include <berth/session.h>

#include "client/sdk/modules/module_bytes.h"
#include "common/os/memfd.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/stopwatch.h"

namespace berth::bench {
namespace {

constexpr int kWarmUp = 300;
constexpr int kCount = 1000;
constexpr int kRounds = 9;
// Typical output size of NVRTC for a kernel or two.
constexpr size_t kModuleBytes = 32 << 10;

// A compiler that takes no time.
class InstantCompiler final : public ModuleCompiler {
 public:
  absl::StatusOr<std::string> Version() override { return "bench 1"; }
  absl::StatusOr<std::string> Compile(const ModuleSource&) override { return std::string(kModuleBytes, 'm'); }
};

// Returns sealed memory with such a module, as the daemon delivers it.
absl::StatusOr<UniqueFd> MakeSealed() {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd memory, CreateMemfd("bench-module", 0));
  const std::string module(kModuleBytes, 'm');
  if (::write(memory.get(), module.data(), module.size()) != static_cast<ssize_t>(module.size())) {
    return absl::InternalError("write(memfd)");
  }
  BERTH_RETURN_IF_ERROR(SealMemfd(memory.get(), F_SEAL_WRITE));
  return ReopenReadOnly(memory.get());
}

// Runs one round against new servers: pairs of a module delivery, without its mapping, and one echo.
absl::StatusOr<Pairs> HitRound(const Programs& programs, std::vector<double>* mappings) {
  BERTH_ASSIGN_OR_RETURN(const auto daemon, StartDaemon(programs));
  BERTH_ASSIGN_OR_RETURN(const auto echo_server, StartEcho(programs));
  EchoClient echo(EchoSocket(echo_server->folder()));
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = daemon->folder()}));
  BERTH_ASSIGN_OR_RETURN(const UniqueFd sealed, MakeSealed());
  const Digest content = Sha256Of(std::string(kModuleBytes, 'm'));
  InstantCompiler compiler;
  const ModuleSource source = {.code = std::string(4 << 10, 's'), .architecture = "compute_90"};
  CompiledModule::Origin origin = CompiledModule::Origin::kAlone;
  const auto obtain = [&]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const CompiledModule module,
                           CompileModule(session, "bench", ProbedDevice(), source, {.compiler = &compiler}));
    origin = module.origin();
    return absl::OkStatus();
  };
  const auto map = [&] { return internal::ModuleBytes::Map(sealed, kModuleBytes, content).status(); };
  BERTH_RETURN_IF_ERROR(obtain());
  Pairs pairs;
  for (int i = -kWarmUp; i < kCount; ++i) {
    double ours = 0, theirs = 0;
    if (i % 2 == 0) {
      BERTH_ASSIGN_OR_RETURN(ours, Microseconds(obtain));
    }
    BERTH_ASSIGN_OR_RETURN(theirs, Microseconds([&] { return echo.Call(); }));
    if (i % 2 != 0) {
      BERTH_ASSIGN_OR_RETURN(ours, Microseconds(obtain));
    }
    BERTH_ASSIGN_OR_RETURN(const double mapping, Microseconds(map));
    if (origin != CompiledModule::Origin::kNode) return absl::InternalError("the module is not the node's");
    if (i < 0) continue;
    pairs.ours.push_back(std::max(0.0, ours - mapping));
    pairs.theirs.push_back(theirs);
    mappings->push_back(mapping);
  }
  return pairs;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> ModuleMeasurements(const Programs& programs) {
  std::vector<Pairs> rounds;
  std::vector<double> mappings;
  for (int i = 0; i < kRounds; ++i) {
    BERTH_ASSIGN_OR_RETURN(rounds.emplace_back(), HitRound(programs, &mappings));
  }
  return std::vector<Measurement>{
      {.name = "mapping a module of 32 KiB, with its SHA-256", .value = Median(std::move(mappings)), .unit = "us"},
      CompareRounds("module from the node, less its mapping", rounds, "us", "one bare echo", 1.5)};
}

}  // namespace berth::bench
