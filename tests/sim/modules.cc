// Compiled modules: the requests of simulated processes, the module store's actions, and their results.

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace berth::core {
namespace {

// So few that each is requested repeatedly.
constexpr uint64_t kKeys = 6;

Digest DigestOf(uint64_t draw) {
  Digest digest;
  for (size_t i = 0; i < 8; ++i) digest.bits[i] = static_cast<uint8_t>(draw >> (8 * i));
  return digest;
}

}  // namespace

void Simulation::LeaveModules() {
  for (uint64_t i = 0; i < 8; ++i) {
    const ModuleRecord record = {.tenant = {.uid = static_cast<uint32_t>(1000 + Draw(4))},
                                 .key = DigestOf(1 + Draw(kKeys)),
                                 .bytes = Bytes(1 + Draw(25)),
                                 .content = DigestOf(1 + Draw(UINT64_MAX - 1))};
    core_->RestoreModule(now_, record, &effects_);
    for (const ModuleView& module : core_->ListModules(Admin())) {
      if (module.record.content == record.content) modules_.Leave(record);
    }
  }
  Apply();
}

Simulation::Payload Simulation::NewModulePayload(ChannelId channel) {
  const CompileId right = modules_.RightOf(channel);
  if (right && Chance(70)) {
    if (Chance(25)) return AbandonModuleRequest{.compile = right, .error = Chance(50) ? "no" : ""};
    return StoreModuleRequest{
        .compile = right, .bytes = Bytes(Draw(45)), .content = DigestOf(1 + Draw(UINT64_MAX - 1))};
  }
  // Usually another client's compile right.
  if (Chance(3))
    return StoreModuleRequest{.compile = CompileId(Draw(200)), .bytes = Bytes(1), .content = DigestOf(1)};
  if (Chance(2)) return AbandonModuleRequest{.compile = CompileId(Draw(200))};
  return ObtainModuleRequest{
      .key = DigestOf(1 + Draw(kKeys)),
      .architecture = "compute_90",
      .deadline = Chance(50) ? absl::InfiniteFuture() : now_ + absl::Milliseconds(Draw(2'000))};
}

void Simulation::ReleaseModule(const Payload& payload) {
  if (const auto* const stored = std::get_if<StoreModuleRequest>(&payload)) modules_.Release(stored->compile);
  if (const auto* const given_up = std::get_if<AbandonModuleRequest>(&payload)) {
    modules_.Release(given_up->compile);
  }
}

void Simulation::LearnModule(ChannelId channel, const Process& process, const ObtainModuleRequest& asked,
                             const ObtainModuleResult& result) {
  const std::string wrong =
      modules_.Learn(now_, channel, clients_.at(process.session).tenant, asked, result,
                     [this](ChannelId other) { return processes_.contains(other) && MayAsk(other); });
  if (!wrong.empty()) Fail(wrong);
  ++(result.compile ? counts_.rights_to_compile : counts_.modules);
}

void Simulation::ApplyModuleWork(const ModuleWork& work) {
  const std::string wrong = modules_.Apply(work);
  if (!wrong.empty()) Fail(wrong);
}

void Simulation::UseModules() {
  if (!modules_.has_work()) return;
  const ModuleWork work = modules_.TakeWork();
  if (work.what == ModuleWork::What::kStore) {
    const absl::Status status = Chance(85) || !workers_fail_
                                    ? absl::OkStatus()
                                    : Refuse(Reason::kInvalidField, "{field}", {{"field", "content"}});
    if (status.ok()) modules_.Store(work);
    core_->ModuleStored(now_, work.module, work.compile, status, &effects_);
  } else if (work.what == ModuleWork::What::kLoad) {
    const uint64_t die = workers_fail_ ? Draw(100) : 99;
    absl::Status status;
    if (die < 30) status = absl::DataLossError("it is not what was written");
    if (die >= 30 && die < 40) status = Refuse(Reason::kLimit, "{what}", {{"what", "fds"}});
    if (status.ok()) modules_.Store(work);
    if (absl::IsDataLoss(status)) {
      modules_.Corrupt(work);
      ++counts_.corrupt_modules;
    }
    core_->ModuleLoaded(now_, work.module, status, &effects_);
  }
}

void Simulation::FinishModules() {
  while (status_.ok() && modules_.has_work()) {
    UseModules();
    Apply();
  }
  if (modules_.places() > 0) Fail("places for modules are left");
  for (const ModuleView& module : core_->ListModules(Admin())) {
    if (module.state != ModuleState::kReady && module.state != ModuleState::kOnDisk) {
      Fail("a module is in the making, and nobody makes it");
    }
  }
}

}  // namespace berth::core
