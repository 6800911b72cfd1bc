// FenceKeeper: the broker's hands on the fence pages of processes: makes them, reads their words for the
// core, and sets them to the top when their process is gone. The vault holds each page beside it.

#ifndef DAEMON_BROKER_FENCE_KEEPER_H_
#define DAEMON_BROKER_FENCE_KEEPER_H_

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/fence_page.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/permit_word.h"
#include "common/unique_fd.h"
#include "daemon/core/fence_types.h"
#include "daemon/vault/custody.h"

namespace berth {

// Thread-safe. Read() and FindPermitWord() are called with the broker's lock held, so nothing here calls the broker.
class FenceKeeper {
 public:
  // `custody` must outlive the keeper.
  explicit FenceKeeper(Custody* custody) : custody_(*custody) {}

  // Carries a MakeFencePage effect out; a page that is there stays. One that could not be made is missing, which Open()
  // says, until OpenOwn() finds room for it.
  void Make(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  // Carries a DropFencePage effect out.
  void Drop(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  // A new fd of the page. Errors: kNotFound for one that is not there.
  absl::StatusOr<UniqueFd> Open(ChannelId channel, bool read_only) const ABSL_LOCKS_EXCLUDED(mu_);
  // The same for the process that the page is of, to be written. One that there was no room for is made now.
  // Errors: kNotFound where there is none now either.
  absl::StatusOr<UniqueFd> OpenOwn(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  // 0 for a page that is not there.
  core::StreamWords Read(core::StreamKey stream) const ABSL_LOCKS_EXCLUDED(mu_);

  // Where the process says whether it uses the permit that it keeps; null for a page that is not there. Valid until
  // Drop().
  PermitWord* FindPermitWord(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);

  // Goes on with the page of a process that is there still.
  void Adopt(ChannelId channel, UniqueFd page) ABSL_LOCKS_EXCLUDED(mu_);
  // A page that an earlier broker made for a process that is not: its session is over, so nobody shall wait for its
  // words, and what it keeps is nobody's.
  void LetGo(HeldFd held) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Held {
    UniqueFd fd;
    FencePage page;
  };

  absl::StatusOr<Held> MakePage(ChannelId channel);

  Custody& custody_;
  mutable Mutex mu_;
  absl::flat_hash_map<ChannelId, Held> pages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_BROKER_FENCE_KEEPER_H_
