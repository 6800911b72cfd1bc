#include "daemon/recovery/adoption.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/process_start.h"
#include "common/status_macros.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

using fd_store::KeyOf;
using fd_store::Kind;

// Returns an empty fd if `held` has none for the key.
UniqueFd Take(fd_store::Key key, HeldFds* held) {
  const auto it = held->find(key);
  if (it == held->end()) return UniqueFd();
  UniqueFd fd = std::move(it->second);
  held->erase(it);
  return fd;
}

// A process whose pidfd was lost. Proven: `fd` is its pidfd, or empty if the process is dead. Not proven: `fd` is a
// placeholder that never becomes readable.
struct FoundProcess {
  UniqueFd fd;
  bool proven = true;
};

absl::StatusOr<FoundProcess> FindLostProcess(const core::RestoredState::Process& process, bool pids_are_known) {
  const auto& [pid, uid, gid, name, start_ticks] = process.process;
  if (pids_are_known && pid > 0) {
    // Ledger records of earlier programs have no start time. If another process has the pid by now, the broker waits
    // for the end of that process: late, but never too early.
    absl::StatusOr<UniqueFd> pidfd = start_ticks != 0 ? OpenProcessStartedAt(pid, start_ticks) : OpenProcess(pid);
    if (pidfd.ok()) return FoundProcess{.fd = *std::move(pidfd)};
    if (absl::IsNotFound(pidfd.status())) return FoundProcess();
    if (!absl::IsFailedPrecondition(pidfd.status())) return pidfd.status();
  }
  UniqueFd stand_in(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stand_in) return OsError("eventfd", errno);
  spdlog::error(
      "session {}: the end of process {} (pid {}) cannot be observed by this daemon; its leases stay counted until "
      "`berth sessions end {}`",
      process.session.value(), name, pid, process.session.value());
  return FoundProcess{.fd = std::move(stand_in), .proven = false};
}

absl::Status AdoptLostProcess(const core::RestoredState::Process& process, const Adopters& adopters, Losses* losses) {
  BERTH_ASSIGN_OR_RETURN(FoundProcess found, FindLostProcess(process, adopters.pids_are_known && !process.unproven));
  if (!found.fd) {
    losses->gone_processes.push_back(process.channel);
    return absl::OkStatus();
  }
  if (found.proven) {
    BERTH_RETURN_IF_ERROR(
        adopters.fd_store.Put(KeyOf(Kind::kPidfd, process.channel.value()), found.fd.get(), FdOwner::kDaemon));
  } else {
    losses->detached.unproven.push_back(process.channel);
  }
  // A process that has hung up also loses its page, which holds the progress of its streams.
  losses->detached.processes.push_back(process.channel);
  if (process.hung_up) return adopters.attach.AdoptProcess(process, std::move(found.fd), UniqueFd());
  return adopters.attach.AdoptAway(process, std::move(found.fd), found.proven);
}

absl::Status AdoptProcess(const core::RestoredState::Process& process, const Adopters& adopters, HeldFds* held,
                          Losses* losses) {
  const uint64_t id = process.channel.value();
  UniqueFd pidfd = Take(KeyOf(Kind::kPidfd, id), held);
  if (!pidfd && (adopters.after_a_loss || process.unproven)) return AdoptLostProcess(process, adopters, losses);
  if (!pidfd) {
    losses->gone_processes.push_back(process.channel);
    return absl::OkStatus();
  }
  UniqueFd channel;
  // A new page would not hold the stream progress that the process writes to the page that it has mapped.
  const bool page_lost =
      adopters.after_a_loss && process.has_page && !adopters.fences.Open(process.channel, /*read_only=*/true).ok();
  if (process.hung_up && page_lost) losses->detached.processes.push_back(process.channel);
  if (!process.hung_up) {
    if (!page_lost) channel = Take(KeyOf(Kind::kChannel, id), held);
    const bool away = !channel && (adopters.after_a_loss || process.detached);
    if (!channel && !away) losses->hung_up_channels.push_back(process.channel);
    if (away) {
      losses->detached.processes.push_back(process.channel);
      return adopters.attach.AdoptAway(process, std::move(pidfd), /*proven=*/true);
    }
  }
  return adopters.attach.AdoptProcess(process, std::move(pidfd), std::move(channel));
}

void AdoptBlock(const core::RestoredState::LeasedBlock& block, const Adopters& adopters, HeldFds* held,
                Losses* losses) {
  UniqueFd fd = Take(KeyOf(Kind::kBlock, block.block.value()), held);
  if (fd) {
    // If the block is still being made, the core requests it again and finds this fd.
    return adopters.blocks.Adopt(block.block, block.device, std::move(fd));
  }
  // A block being made has no fd yet, a block being released has none any more, and a context worker's block never has
  // one.
  adopters.blocks.Expect(block.block);
  if (core::InTheMaking(block.phase) || block.phase == core::BlockPhase::kRetired) return;
  losses->blocks.push_back(block.block);
}

}  // namespace

absl::StatusOr<Losses> AdoptLeases(const core::RestoredState& restored_state, const Adopters& adopters, HeldFds* held) {
  Losses losses;
  for (const core::RestoredState::Process& process : restored_state.processes) {
    BERTH_RETURN_IF_ERROR(AdoptProcess(process, adopters, held, &losses));
  }
  for (const core::RestoredState::Lifeline& lifeline : restored_state.lifelines) {
    UniqueFd socket = Take(KeyOf(Kind::kLifeline, lifeline.session.value()), held);
    const bool detached = lifeline.detached || (!socket && adopters.after_a_loss && lifeline.session_credentials != 0);
    if (detached && !lifeline.ending) {
      // Processes that hold the lifeline are visible to this daemon if their ancestor is.
      const bool seen = adopters.pids_are_known && lifeline.opener.pid > 0;
      losses.detached.sessions.push_back(lifeline.session);
      if (!seen) losses.detached.unseen.push_back(lifeline.session);
      if (!seen && !socket) losses.detached.awaited.push_back(lifeline.session);
      adopters.attach.AdoptDetached(lifeline, seen);
    } else if (!socket) {
      losses.hung_up_sessions.push_back(lifeline.session);
    }
    if (socket) BERTH_RETURN_IF_ERROR(adopters.attach.AdoptLifeline(lifeline, std::move(socket)));
  }
  for (const core::RestoredState::LeasedBlock& block : restored_state.blocks)
    AdoptBlock(block, adopters, held, &losses);
  return losses;
}

void NotifyLosses(const Losses& losses, const Adopters& adopters) {
  // Only after all fds are adopted: an end now may also end other objects.
  adopters.broker.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    for (const BlockId block : losses.blocks) core.BlockLost(now, block, effects);
    core.Detach(now, losses.detached, effects);
    for (const ChannelId channel : losses.gone_processes) core.ProcessGone(now, channel, effects);
    for (const ChannelId channel : losses.hung_up_channels) core.ChannelHungUp(now, channel, effects);
    for (const SessionId session : losses.hung_up_sessions) {
      core.LifelineHungUp(now, session, effects, EndReason::kStateLost);
    }
  });
  adopters.attach.NotifyDeaths();
}

}  // namespace berth
