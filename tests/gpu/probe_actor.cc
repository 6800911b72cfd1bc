// probe_actor: a client process that probes a device and computes with a compiled module. It reads commands from
// standard input, one per line, and answers each on standard output (tests/support/actor/actor_wire.h). It ends at the
// end of its input.
//
//   probe LABEL          the device's UUID and capability
//   add LABEL N          compiles a kernel that adds N, loads and launches it, and checks its result: answers
//                        "node", "compiled" or "alone"

#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <berth/module.h>
#include <berth/probe.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"
#include "tests/support/actor/actor_wire.h"

namespace berth::gpu {
namespace {

using Answer = absl::StatusOr<std::string>;

constexpr char kSource[] = R"(
extern "C" __global__ void Add(unsigned int* words) { words[threadIdx.x] += AMOUNT; }
)";
constexpr uint32_t kWords = 256;

// A loaded module, and its origin.
struct Adder {
  LoadedModule module;
  CompiledModule::Origin origin;
};

absl::Status Check(const ProbedDevice& device, const Adder& adder, uint32_t amount) {
  cuda::Driver& driver = *device.stream->driver();
  BERTH_RETURN_IF_ERROR(device.stream->MakeCurrent());
  std::vector<uint32_t> words(kWords);
  for (uint32_t i = 0; i < kWords; ++i) words[i] = i;
  BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer memory, driver.Allocate(Bytes(kWords * sizeof(uint32_t))));
  BERTH_RETURN_IF_ERROR(driver.CopyToDevice(memory, std::as_bytes(std::span(words))));
  BERTH_ASSIGN_OR_RETURN(void* const function, adder.module.Function("Add"));
  cuda::DevicePointer argument = memory;
  void* arguments[] = {&argument};
  BERTH_RETURN_IF_ERROR(
      driver.Launch(static_cast<cuda::Function>(function), {.block = {kWords, 1, 1}}, nullptr, arguments));
  BERTH_RETURN_IF_ERROR(device.stream->Synchronize());
  BERTH_RETURN_IF_ERROR(driver.CopyToHost(std::as_writable_bytes(std::span(words)), memory));
  BERTH_RETURN_IF_ERROR(driver.Free(memory));
  for (uint32_t i = 0; i < kWords; ++i) {
    if (words[i] != i + amount) return absl::DataLossError(absl::StrCat("word ", i, " is ", words[i]));
  }
  return absl::OkStatus();
}

Answer Do(const std::shared_ptr<Session>& session, Prober& prober, const std::string& line) {
  std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  words.resize(3);
  if (words[0] == "probe") {
    BERTH_ASSIGN_OR_RETURN(const OrAbsent<ProbedDevice> probed, prober.Probe(words[1]));
    const ProbedDevice& device = probed.value();
    return absl::StrCat(device.uuid, " ", device.capability.major, ".", device.capability.minor);
  }
  uint32_t amount = 0;
  if (words[0] != "add" || !absl::SimpleAtoi(words[2], &amount)) return absl::InvalidArgumentError(line);
  const ModuleSource source = {.code = kSource, .options = {absl::StrCat("-DAMOUNT=", amount)}};
  absl::StatusOr<OrAbsent<Adder>> built =
      ProbeAndBuild(prober, words[1], [&](const ProbedDevice& device) -> absl::StatusOr<Adder> {
        BERTH_ASSIGN_OR_RETURN(const CompiledModule compiled, CompileModule(session, words[1], device, source));
        BERTH_ASSIGN_OR_RETURN(LoadedModule module, LoadedModule::Load(words[1], device, compiled));
        Adder adder{.module = std::move(module), .origin = compiled.origin()};
        BERTH_RETURN_IF_ERROR(Check(device, adder, amount));
        return adder;
      });
  BERTH_RETURN_IF_ERROR(built.status());
  const CompiledModule::Origin origin = built->value().origin;
  return origin == CompiledModule::Origin::kNode       ? "node"
         : origin == CompiledModule::Origin::kCompiled ? "compiled"
                                                       : "alone";
}

int Run() {
  const absl::StatusOr<std::shared_ptr<Session>> session = Session::Open({.label = "probe_actor"});
  std::shared_ptr<Prober> prober;
  if (session.ok()) prober = Prober::Create(*session, {.policy = DevicePolicy::kRequired});
  std::string line;
  while (std::getline(std::cin, line)) {
    const Answer answer = session.ok() ? Do(*session, *prober, line) : Answer(session.status());
    std::cout << testing::EncodeAnswer(answer) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace berth::gpu

int main() { return berth::gpu::Run(); }
