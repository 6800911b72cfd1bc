// The messages of simulated processes on their channels, which a next broker may receive again.

#include <iterator>
#include <utility>

#include "tests/sim/simulation.h"

namespace berth::core {

void Simulation::Say(ChannelId channel, std::function<void()> what) {
  what();
  said_.emplace_back(channel, std::move(what));
}

void Simulation::Acknowledge() {
  const std::optional<ChannelId> channel = SomeChannel();
  if (!channel.has_value()) return;
  Process& process = processes_.at(*channel);
  // Deliveries that were never sent. The daemon may have sent the next ones to a process that is away.
  if (Chance(3)) core_->DeliveryAcknowledged(now_, *channel, process.last_delivery + 1'000 + Draw(5), &effects_);
  if (process.acknowledged == process.last_delivery || process.hung_up || process.away || process.stopped) return;
  process.acknowledged += 1 + Draw(process.last_delivery - process.acknowledged);
  process.fds_under_way.erase(process.fds_under_way.begin(),
                              process.fds_under_way.upper_bound(process.acknowledged));
  if (process.own_page != 0 && process.own_page <= process.acknowledged) process.mapped_own_page = true;
  Say(*channel, [this, id = *channel, number = process.acknowledged] {
    core_->DeliveryAcknowledged(now_, id, number, &effects_);
  });
}

void Simulation::GiveBack() {
  const std::optional<ChannelId> channel = SomeChannel();
  if (!channel.has_value()) return;
  const Process& process = processes_.at(*channel);
  if (process.hung_up || process.away || process.stopped) return;
  const SessionId session = process.session;
  Client& client = clients_.at(session);
  // Another client's, or no existing acquisition.
  AcquisitionId acquisition(Draw(1'000));
  if (!client.acquisitions.empty() && !Chance(5)) {
    const auto at = client.acquisitions.begin() + Draw(client.acquisitions.size());
    acquisition = *at;
    client.acquisitions.erase(at);
  }
  Say(*channel, [this, id = *channel, session, acquisition] {
    const absl::StatusOr<ReleaseResult> given = core_->GiveBack(now_, id, acquisition, /*if_idle=*/false, &effects_);
    if (given.ok()) OncePersisted([=, this] { LearnReleased(session, acquisition, *given); });
    if (Chance(20) && core_->GiveBack(now_, id, acquisition, /*if_idle=*/false, &effects_).ok()) {
      Fail("something is given back twice");
    }
  });
}

void Simulation::LetGo() {
  const std::optional<ChannelId> channel = SomeChannel();
  if (!channel.has_value()) return;
  Process& process = processes_.at(*channel);
  if (process.stopped) return;
  if (Chance(3)) {
    // Another client's, or no existing import.
    ImportId import(Draw(200));
    if (!process.mapped.contains(import)) core_->ImportLetGo(now_, *channel, import, &effects_);
  }
  if (Chance(10) && !process.requests.empty() && !process.hung_up) {
    // An import from an answer, whether or not its fd has arrived yet.
    const Request& request = process.requests.at(SomeSequence(process));
    if (!request.first.has_value() || !request.first->ok()) return;
    const auto* const imported = std::get_if<ImportResult>(&**request.first);
    if (imported == nullptr) return;
    process.mapped.erase(imported->import);
    if (process.away) return process.unsaid.push_back(imported->import);
    return Say(*channel, [this, id = *channel, import = imported->import] {
      core_->ImportLetGo(now_, id, import, &effects_);
    });
  }
  if (process.mapped.empty() || process.hung_up) return;
  const ImportId import = std::next(process.mapped.begin(), Draw(process.mapped.size()))->first;
  process.mapped.erase(import);
  if (process.away) return process.unsaid.push_back(import);
  Say(*channel, [this, id = *channel, import] { core_->ImportLetGo(now_, id, import, &effects_); });
}

}  // namespace berth::core
