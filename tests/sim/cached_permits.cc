// Permits that simulated processes cache between uses: taken and put back through the permit slots of their pages, with
// or without a broker.

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace berth::core {

PermitSlot* Simulation::FindPermitSlot(ChannelId channel) {
  return pages_.contains(channel) ? &permit_slots_[channel] : nullptr;
}

AcquireRequest Simulation::NewAcquire(const Process& process) {
  if (!process.keeps || Chance(30)) return NewAcquire();
  return {.pool = Chance(60) ? "gpu-tests" : "wide",
          .holder_key = absl::StrCat("thread ", Draw(Chance(80) ? 1'000'000 : 4)),
          .wait = !Chance(15),
          .deadline = Chance(50) ? absl::InfiniteFuture() : now_ + absl::Milliseconds(Draw(2'000)),
          .independent = Chance(50),
          .keep = true};
}

Simulation::Payload Simulation::NewPermitPayload(Process& process) {
  Client& client = clients_.at(process.session);
  if (!process.keeps && Chance(10)) return KeepPermitsRequest();
  if (process.owes_look && Chance(50)) {
    process.owes_look = false;
    return ReleaseIfIdleRequest{.acquisition = process.cached->acquisition};
  }
  const uint64_t die = Draw(100);
  if (die < 12) {
    Payload payload = NewPlanPayload(client);
    if (auto* const plan = std::get_if<PlanRequest>(&payload)) plan->reserve = false;
    return payload;
  }
  if (die < 24) {
    GangRequest gang = NewGang();
    gang.reserve.clear();
    return gang;
  }
  if (die < 60 && !client.acquisitions.empty()) {
    const auto at = client.acquisitions.begin() + Draw(client.acquisitions.size());
    const AcquisitionId acquisition = *at;
    client.acquisitions.erase(at);
    return acquisition;
  }
  return NewAcquire(process);
}

void Simulation::LearnCached(ChannelId channel, Process& process, const AcquireResult& permit) {
  SettleCached();
  const PermitSlot* const permit_slot = FindPermitSlot(channel);
  if (permit_slot == nullptr || permit_slot->StateOf(permit.permit.value()) != PermitSlot::Lent::kYes) {
    // The process received the answer so late that it caches another permit by now.
    clients_.at(process.session).acquisitions.push_back(permit.acquisition);
    return;
  }
  if (!process.mapped_own_page) {
    Fail("a process may cache a permit in a page that it has not mapped");
  }
  cachers_.insert(channel);
  process.cached = permit;
  process.in_use = true;
  process.owes_look = false;
}

void Simulation::UseCached() {
  for (int tries = 0; tries < 4; ++tries) {
    const std::optional<ChannelId> channel = SomeChannel();
    if (!channel.has_value()) return;
    Process& process = processes_.at(*channel);
    const bool acts = !process.hung_up && !process.stopped;
    if (process.cached.has_value() && acts) return UseCached(*channel, process);
  }
}

void Simulation::UseCached(ChannelId channel, Process& process) {
  PermitSlot* const permit_slot = FindPermitSlot(channel);
  if (permit_slot == nullptr) return Fail("a process keeps a permit whose page is gone");
  if (process.in_use) return PutBack(process, permit_slot);
  const PermitId permit = process.cached->permit;
  if (process.owes_look && Chance(70)) {
    if (dead_) return;
    process.owes_look = false;
    return Say(channel, [this, channel, acquisition = process.cached->acquisition] {
      core_->GiveBack(now_, channel, acquisition, /*if_idle=*/true, &effects_).status().IgnoreError();
    });
  }
  if (!permit_slot->Take(permit.value())) return;
  process.in_use = true;
  ++(dead_ ? counts_.taken_in_between : counts_.taken_again);
  const auto out = permits_.find(permit);
  if (out == permits_.end() || !out->second.second.contains(process.cached->acquisition)) {
    Fail("a cached permit is used that is not out");
  }
}

void Simulation::PutBack(Process& process, PermitSlot* permit_slot) {
  const AcquireResult permit = *process.cached;
  process.in_use = false;
  const PermitSlot::PutBack put =
      Chance(5) ? PermitSlot::PutBack::kNotOurs : permit_slot->Put(permit.permit.value());
  if (put == PermitSlot::PutBack::kWanted) process.owes_look = true;
  if (put != PermitSlot::PutBack::kNotOurs) return;
  clients_.at(process.session).acquisitions.push_back(permit.acquisition);
  process.cached.reset();
  process.owes_look = false;
}

void Simulation::SettleCached() {
  const size_t left = std::erase_if(left_cached_, [this](const auto& left) {
    return SettleCached(left.first, left.second, /*in_use=*/false).has_value();
  });
  settled_ = settled_ || left > 0;
  std::erase_if(cachers_, [&](ChannelId channel) {
    const auto at = processes_.find(channel);
    if (at == processes_.end() || !at->second.cached.has_value()) return true;
    Process& process = at->second;
    const std::optional<PermitSlot::Lent> over = SettleCached(channel, *process.cached, process.in_use);
    if (!over.has_value()) return false;
    // The process releases a permit without a permit slot like any other.
    if (over == PermitSlot::Lent::kEnded) {
      clients_.at(process.session).acquisitions.push_back(process.cached->acquisition);
    }
    process.cached.reset();
    process.in_use = process.owes_look = false;
    return settled_ = true;
  });
}

std::optional<PermitSlot::Lent> Simulation::SettleCached(ChannelId channel, const AcquireResult& cached, bool in_use) {
  const PermitSlot* const permit_slot = FindPermitSlot(channel);
  const PermitSlot::Lent lent =
      permit_slot == nullptr ? PermitSlot::Lent::kYes : permit_slot->StateOf(cached.permit.value());
  if (lent == PermitSlot::Lent::kYes) return std::nullopt;
  if (lent == PermitSlot::Lent::kEnded) return lent;
  const auto out = permits_.find(cached.permit);
  if (out != permits_.end() && out->second.second.erase(cached.acquisition) > 0) {
    ++counts_.taken_back;
    if (in_use) Fail("a permit is taken back that is used");
  }
  return lent;
}

}  // namespace berth::core
