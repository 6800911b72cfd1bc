#include "client/sdk/transport/fork_guard.h"

#include <pthread.h>

#include <mutex>
#include <set>

namespace berth::internal {

// All guards of the process. The registry's lock is held over fork(), so that the child finds the set consistent.
class ForkRegistry {
 public:
  static ForkRegistry& Get() {
    static ForkRegistry* const registry = new ForkRegistry;  // Never destroyed: fork() may come late.
    return *registry;
  }

  void Add(ForkGuard* guard) {
    std::lock_guard lock(mu_);
    guards_.insert(guard);
  }
  void Remove(ForkGuard* guard) {
    std::lock_guard lock(mu_);
    guards_.erase(guard);
  }

 private:
  ForkRegistry() {
    ::pthread_atfork([] { Get().mu_.lock(); }, [] { Get().mu_.unlock(); },
                     [] {
                       fork_depth.fetch_add(1, std::memory_order_relaxed);
                       for (ForkGuard* guard : Get().guards_) guard->CloseInChild();
                       Get().mu_.unlock();
                     });
  }

  std::mutex mu_;
  std::set<ForkGuard*> guards_;
};

ForkGuard::ForkGuard(UniqueFd lifeline, UniqueFd channel, UniqueFd session_credentials)
    : made_at_(fork_depth.load(std::memory_order_relaxed)),
      lifeline_(lifeline.release()),
      channel_(channel.release()),
      session_credentials_(session_credentials.release()) {
  ForkRegistry::Get().Add(this);
}

ForkGuard::~ForkGuard() {
  ForkRegistry::Get().Remove(this);
  UniqueFd(session_credentials_.exchange(-1));
  UniqueFd(lifeline_.exchange(-1));
  UniqueFd(channel_.exchange(-1));
}

void ForkGuard::CloseInChild() {
  UniqueFd(channel_.exchange(-1));
  if (keep_lifeline_.load(std::memory_order_relaxed)) return;
  UniqueFd(lifeline_.exchange(-1));
  UniqueFd(session_credentials_.exchange(-1));
}

absl::Status ForkGuard::Check() const {
  if (!forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked after the session was opened: call exec first, with Session::Inherit()");
}

absl::Status CheckNotForked() {
  if (fork_depth.load(std::memory_order_relaxed) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("this process was forked from a process that uses Berth: call exec first");
}

}  // namespace berth::internal
