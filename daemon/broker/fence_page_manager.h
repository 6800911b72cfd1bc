// FencePageManager: manages the fence pages of processes. The manager makes pages, reads their fence values for the
// core, and sets the values to the maximum when a page's process has ended. The supervisor holds each page too.

#ifndef DAEMON_BROKER_FENCE_PAGE_MANAGER_H_
#define DAEMON_BROKER_FENCE_PAGE_MANAGER_H_

#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/wire/fence_page.h"
#include "common/wire/permit_slot.h"
#include "common/wire/take_up.h"
#include "daemon/core/types/fence_types.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"

namespace berth {

// Thread-safe. Read() and the finders are called with the broker's lock held, so this class never calls the
// broker.
class FencePageManager {
 public:
  // `fd_store` must outlive the manager.
  explicit FencePageManager(SupervisorFdStore* fd_store) : fd_store_(*fd_store) {}

  // Executes a MakeFencePage effect; an existing page stays. If the page cannot be made, Open() reports it as missing
  // until OpenOwn() succeeds in making it.
  void Make(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  // Executes a DropFencePage effect.
  void Drop(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a new fd of the page. Errors: kNotFound if there is no page; those of the system if it cannot be opened.
  absl::StatusOr<UniqueFd> Open(ChannelId channel, bool read_only) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a writable fd for the process that the page belongs to. Makes a page that could not be made before. Errors:
  // kNotFound if that fails again.
  absl::StatusOr<UniqueFd> OpenOwn(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the fence values of the stream; 0 if there is no page.
  core::FenceValues Read(core::StreamKey stream) const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the permit slot, in which the process reports whether it uses its cached permit; null if there is no page.
  // Valid until Drop().
  PermitSlot* FindPermitSlot(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);
  // Likewise the words by which the process takes up grants.
  TakeUpWords* FindTakeUpWords(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);

  // Continues with the page of a process that still runs. Errors: those of FencePage; then no waiter could wait for the
  // process's fence values, so the broker cannot serve.
  absl::Status Adopt(ChannelId channel, UniqueFd page) ABSL_LOCKS_EXCLUDED(mu_);
  // Retires a page that an earlier broker made for a process that is not registered any more. The process's session is
  // over: no waiter shall wait for its fence values, and its cached permit has no owner.
  void LetGo(HeldFd held) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Held {
    UniqueFd fd;
    FencePage page;
  };

  absl::StatusOr<Held> MakePage(ChannelId channel);

  SupervisorFdStore& fd_store_;
  mutable Mutex mu_;
  absl::flat_hash_map<ChannelId, Held> pages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_BROKER_FENCE_PAGE_MANAGER_H_
