// Permits that simulated processes keep between uses: taken and put back by the words of their pages, whether or not
// there is a broker.

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace berth::core {

PermitWord* Simulation::FindWord(ChannelId channel) {
  return pages_.contains(channel) ? &permit_words_[channel] : nullptr;
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
    return ReleaseIfIdleRequest{.acquisition = process.kept->acquisition};
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

void Simulation::LearnKept(ChannelId channel, Process& process, const AcquireResult& permit) {
  SettleKept();
  const PermitWord* const word = FindWord(channel);
  if (word == nullptr || word->StateOf(permit.permit.value()) != PermitWord::Lent::kYes) {
    // It heard of it so late that it keeps another one by now.
    clients_.at(process.session).acquisitions.push_back(permit.acquisition);
    return;
  }
  keepers_.insert(channel);
  process.kept = permit;
  process.in_use = true;
  process.owes_look = false;
}

void Simulation::UseKept() {
  for (int tries = 0; tries < 4; ++tries) {
    const std::optional<ChannelId> channel = SomeChannel();
    if (!channel.has_value()) return;
    Process& process = processes_.at(*channel);
    if (process.kept.has_value() && !process.hung_up) return UseKept(*channel, process);
  }
}

void Simulation::UseKept(ChannelId channel, Process& process) {
  PermitWord* const word = FindWord(channel);
  if (word == nullptr) return Fail("a process keeps a permit whose page is gone");
  if (process.in_use) return PutBack(process, word);
  const PermitId permit = process.kept->permit;
  if (process.owes_look && Chance(70)) {
    if (dead_) return;
    process.owes_look = false;
    return Say(channel, [this, channel, acquisition = process.kept->acquisition] {
      core_->GiveBack(now_, channel, acquisition, /*if_idle=*/true, &effects_).status().IgnoreError();
    });
  }
  if (!word->Take(permit.value())) return;
  process.in_use = true;
  ++(dead_ ? counts_.taken_in_between : counts_.taken_again);
  const auto out = permits_.find(permit);
  if (out == permits_.end() || !out->second.second.contains(process.kept->acquisition)) {
    Fail("a kept permit is used that is not out");
  }
}

void Simulation::PutBack(Process& process, PermitWord* word) {
  const AcquireResult permit = *process.kept;
  process.in_use = false;
  const PermitWord::PutBack put =
      Chance(5) ? PermitWord::PutBack::kNotOurs : word->Put(permit.permit.value());
  if (put == PermitWord::PutBack::kWanted) process.owes_look = true;
  if (put != PermitWord::PutBack::kNotOurs) return;
  clients_.at(process.session).acquisitions.push_back(permit.acquisition);
  process.kept.reset();
  process.owes_look = false;
}

void Simulation::SettleKept() {
  const size_t left = std::erase_if(left_kept_, [this](const auto& left) {
    return SettleKept(left.first, left.second, /*in_use=*/false).has_value();
  });
  settled_ = settled_ || left > 0;
  std::erase_if(keepers_, [&](ChannelId channel) {
    const auto at = processes_.find(channel);
    if (at == processes_.end() || !at->second.kept.has_value()) return true;
    Process& process = at->second;
    const std::optional<PermitWord::Lent> over = SettleKept(channel, *process.kept, process.in_use);
    if (!over.has_value()) return false;
    // It releases as any other what it has no word for any more.
    if (over == PermitWord::Lent::kEnded) {
      clients_.at(process.session).acquisitions.push_back(process.kept->acquisition);
    }
    process.kept.reset();
    process.in_use = process.owes_look = false;
    return settled_ = true;
  });
}

std::optional<PermitWord::Lent> Simulation::SettleKept(ChannelId channel, const AcquireResult& kept, bool in_use) {
  const PermitWord* const word = FindWord(channel);
  const PermitWord::Lent lent = word == nullptr ? PermitWord::Lent::kYes : word->StateOf(kept.permit.value());
  if (lent == PermitWord::Lent::kYes) return std::nullopt;
  if (lent == PermitWord::Lent::kEnded) return lent;
  const auto out = permits_.find(kept.permit);
  if (out != permits_.end() && out->second.second.erase(kept.acquisition) > 0) {
    ++counts_.taken_back;
    if (in_use) Fail("a permit is taken back that is used");
  }
  return lent;
}

}  // namespace berth::core
