#include "daemon/adoption.h"

#include <utility>

#include "common/status_macros.h"
#include "daemon/vault/custody_wire.h"

namespace berth {
namespace {

using custody::KeyOf;
using custody::Kind;

// Returns none where it is not held.
UniqueFd Take(custody::Key key, HeldFds* held) {
  const auto it = held->find(key);
  if (it == held->end()) return UniqueFd();
  UniqueFd fd = std::move(it->second);
  held->erase(it);
  return fd;
}

absl::Status AdoptProcess(const core::Standing::Process& process, const Adopters& adopters, HeldFds* held,
                          Losses* losses) {
  const uint64_t id = process.channel.value();
  UniqueFd pidfd = Take(KeyOf(Kind::kPidfd, id), held);
  if (!pidfd) {
    losses->gone_processes.push_back(process.channel);
    return absl::OkStatus();
  }
  UniqueFd channel;
  if (!process.hung_up) {
    channel = Take(KeyOf(Kind::kChannel, id), held);
    if (!channel) losses->hung_up_channels.push_back(process.channel);
  }
  return adopters.attach.AdoptProcess(process, std::move(pidfd), std::move(channel));
}

void AdoptBlock(const core::Standing::LeasedBlock& block, const Adopters& adopters, HeldFds* held, Losses* losses) {
  UniqueFd fd = Take(KeyOf(Kind::kBlock, block.block.value()), held);
  if (fd) {
    // Where it is still being made for the core, that asks for it again, and has it.
    return adopters.blocks.Adopt(block.block, block.device, std::move(fd));
  }
  // One that is being made has none yet, one that is on its way back none any more, and a context worker's never one.
  adopters.blocks.Expect(block.block);
  if (core::InTheMaking(block.phase) || block.phase == core::BlockPhase::kRetired) return;
  losses->blocks.push_back(block.block);
}

}  // namespace

absl::StatusOr<Losses> AdoptLeases(const core::Standing& standing, const Adopters& adopters, HeldFds* held) {
  Losses losses;
  for (const core::Standing::Process& process : standing.processes) {
    BERTH_RETURN_IF_ERROR(AdoptProcess(process, adopters, held, &losses));
  }
  for (const core::Standing::Lifeline& lifeline : standing.lifelines) {
    UniqueFd socket = Take(KeyOf(Kind::kLifeline, lifeline.session.value()), held);
    if (socket) {
      BERTH_RETURN_IF_ERROR(adopters.attach.AdoptLifeline(lifeline, std::move(socket)));
    } else {
      losses.hung_up_sessions.push_back(lifeline.session);
    }
  }
  for (const core::Standing::LeasedBlock& block : standing.blocks) AdoptBlock(block, adopters, held, &losses);
  return losses;
}

void TellLosses(const Losses& losses, const Adopters& adopters) {
  // Not before all is in hand: what ends now may take anything else along.
  adopters.broker.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    for (const BlockId block : losses.blocks) core.BlockLost(now, block, effects);
    for (const ChannelId channel : losses.gone_processes) core.ProcessGone(now, channel, effects);
    for (const ChannelId channel : losses.hung_up_channels) core.ChannelHungUp(now, channel, effects);
    for (const SessionId session : losses.hung_up_sessions) core.LifelineHungUp(now, session, effects);
  });
  adopters.attach.TellDeaths();
}

}  // namespace berth
