#include "daemon/adoption.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "daemon/vault/custody_wire.h"
#include "spdlog/spdlog.h"

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

// What says when a process is gone whose pidfd was lost, into custody; none where it is gone. Where the number is
// another process's by now that one's end is waited for: late, but never too early.
absl::StatusOr<UniqueFd> FindLostProcess(const core::Standing::Process& process, Custody& custody) {
  const int32_t pid = process.process.pid;
  UniqueFd found;
  if (pid > 0) {
    found.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!found && errno == ESRCH) return UniqueFd();
    if (!found) return OsError(absl::StrCat("pidfd_open ", pid), errno);
  } else {
    // It is not seen from here, so nothing proves its end.
    spdlog::error("what process {} of session {:x} holds stays out until an operator resets", process.process.name,
                  process.session.value());
    found.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!found) return OsError("eventfd", errno);
  }
  BERTH_RETURN_IF_ERROR(custody.Put(KeyOf(Kind::kPidfd, process.channel.value()), found.get(), FdOwner::kDaemon));
  return found;
}

absl::Status AdoptProcess(const core::Standing::Process& process, const Adopters& adopters, HeldFds* held,
                          Losses* losses) {
  const uint64_t id = process.channel.value();
  UniqueFd pidfd = Take(KeyOf(Kind::kPidfd, id), held);
  if (!pidfd && adopters.after_a_loss) {
    BERTH_ASSIGN_OR_RETURN(pidfd, FindLostProcess(process, adopters.custody));
  }
  if (!pidfd) {
    losses->gone_processes.push_back(process.channel);
    return absl::OkStatus();
  }
  UniqueFd channel;
  if (!process.hung_up) {
    // Another page than the one that it has mapped would say nothing of its streams.
    const bool page_lost =
        adopters.after_a_loss && process.has_page && !adopters.fences.Open(process.channel, /*read_only=*/true).ok();
    if (!page_lost) channel = Take(KeyOf(Kind::kChannel, id), held);
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
