// Fences: streams, the uses of blocks on them, and the requests that wait for either. A prepare waits for other uses,
// an import for the hand-over of a block. Fences also polls for the ends that only fence values show: of freed blocks
// in use, and of sessions.

#ifndef DAEMON_CORE_FENCES_FENCES_H_
#define DAEMON_CORE_FENCES_FENCES_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/wire/attach_wire.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/fences/fence_table.h"
#include "daemon/core/memory/block_table.h"
#include "daemon/core/requests/wait_place.h"
#include "daemon/core/types/block_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/fence_types.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/request_id.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Fences final : public WaitPlace {
 public:
  // `core` outlives the manager.
  Fences(Managers& core, ReadFenceValues read);

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  void OpenStream(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                  const OpenStreamRequest& request);
  void CloseStream(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                   const CloseStreamRequest& request);
  void PrepareUse(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                  const PrepareUseRequest& request);
  void FinishUse(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                 const FinishUseRequest& request);
  void AbandonUse(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                  const AbandonUseRequest& request);
  absl::StatusOr<BlockView> ClearTorn(StepContext& step, const Caller& caller, BlockId id);
  void BlockHandedOver(StepContext& step, ChannelId channel, BlockId block, const std::vector<HandedMark>& marks);
  Page<StreamView> ListStreams(const Caller& caller, const PageRequest& request) const;

  // ---- For the other managers -------------------------------------------------------------------------------

  // Schedules a check of the session at the next poll, which finishes it if it is over.
  void LookAtLater(StepContext& step, SessionId session);
  // Delivers the process's page for the request, and creates the page if there is none.
  void SendOwnPage(StepContext& step, const RequestId& request);
  // Whether a process other than `importer` tracks the block alone and has streams; asks it to hand over.
  bool AwaitHandOver(StepContext& step, Block& block, ChannelId importer);
  // Resumes imports whose block has been handed over, or can no longer be imported.
  void ServeImports(StepContext& step);
  // The fence part of a process's end, and of the freeing of a block.
  void EndFencesOf(StepContext& step, ChannelId channel);
  void EndFencesOf(StepContext& step, Block& block);
  // Whether the block's uses have ended, so that its memory may be released; else schedules a poll.
  bool MayGoBack(StepContext& step, Block& block);
  absl::Status CheckFences() const;
  void ReadStream(StreamKey stream, ArchiveReader& archive);

  const FenceTable& table() const { return fences_; }
  // As the tables' methods of that name.
  bool Quiet(ChannelId channel) const { return fences_.Quiet(channel, read_fence_values_); }
  void Erase(BlockId block) { fences_.Erase(block); }
  absl::Status Close(StreamKey stream) { return fences_.streams().Close(stream); }
  void CloseQuiet() { fences_.streams().CloseQuiet(); }
  void ReadRecord(const RecordKey& key, ArchiveReader& archive) { fences_.ReadRecord(key, archive); }
  // Abandons the use of a forgotten request. Returns whether there was such a use.
  bool Abandon(StepContext& step, ChannelId channel, UseId use);
  // Makes the import wait until the block has been handed over.
  void AwaitImport(StepContext& step, const RequestId& request, BlockId block, bool read_only);
  // Answers the prepares that requests which left had blocked.
  void AnswerLeft(StepContext& step);
  void RestoreCounters(uint64_t last_stream, uint64_t last_use);
  // Called after the last record.
  void FinishRestoring();
  // A restored block waits for the end of its uses.
  void RestoreBusy(BlockId block);
  // Resumes the polls after a restart: of busy blocks; of sessions that may be over.
  void ResumeBlocks(StepContext& step);
  void ResumeSessions(StepContext& step);
  bool IsBusy(BlockId block) const { return busy_.contains(block); }
  bool IsLeaving(SessionId session) const { return leaving_.contains(session); }
  // Ends the polls of a session that is over.
  void StopLooking(SessionId session) { leaving_.erase(session); }
  // Whether the request waits for other uses, or for a hand-over.
  bool Waits(const RequestId& request) const { return imports_.contains(request) || fences_.Waits(request); }

  // WaitPlace. The deadlines are the daemon's own.
  bool SetDeadline(const RequestId&, const WaitTicket&, absl::Time) override { return false; }
  void Leave(StepContext& step, const RequestId& request, const WaitTicket& ticket) override;
  void Expire(StepContext& step) override;
  absl::Time next_deadline() const override;
  bool EndsInImport(const RequestId& request) const override { return imports_.contains(request); }

 private:
  // An import that waits until the process that tracks the block alone has handed the tracking over.
  struct WaitingImport {
    BlockId block;
    bool read_only = false;
    absl::Time deadline;
  };

  FenceStep StepOf(StepContext& step, PrepareOutcomes* outcomes) const {
    return FenceStep{.now = step.now, .read = read_fence_values_, .outcomes = outcomes};
  }
  // Answers the prepares of a table step, each after the pages that it names.
  void AnswerPrepares(StepContext& step, PrepareOutcomes outcomes);
  void AnswerPrepare(StepContext& step, const RequestId& request, const absl::StatusOr<Prepared>& prepared);
  // Checks that the channel has imported the live block for such a use. Errors: DENIED, STALE.
  absl::Status CheckUse(ChannelId channel, const BlockUse& use) const;
  // Polls the retired blocks that are in use.
  void Poll(StepContext& step);
  void PollSoon(StepContext& step);
  void FinishLeaving(StepContext& step);
  // Removes the waiting import.
  WaitingImport TakeImport(const RequestId& request);

  Managers& core_;
  const ReadFenceValues read_fence_values_;
  FenceTable fences_;
  // Outcomes of prepares behind requests that left in this step.
  PrepareOutcomes left_;
  std::map<RequestId, WaitingImport> imports_;
  // By deadline.
  std::set<std::pair<absl::Time, RequestId>> import_deadlines_;
  // The channels whose pages each channel was sent.
  std::map<ChannelId, std::set<ChannelId>> sent_pages_;
  // Retired blocks in use, and sessions that may be over: checked at `next_poll_`, at growing intervals.
  std::set<BlockId> busy_;
  std::set<SessionId> leaving_;
  absl::Time next_poll_ = absl::InfiniteFuture();
  absl::Duration poll_pause_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_FENCES_FENCES_H_
