// SessionCore is what every part of the SDK stands on: one session of one process, with its sockets, its gRPC
// channel, its requests' numbers and what it owes the daemon.
//
// A mutating request goes like this: Begin() opens it, Call() sends it (again, under the same number, where another
// broker took over: call_attempts.h), Resolve() settles it or owes a ForgetRequest, which is repeated in the background
// until answered. What gives a lease back goes through GiveBack(), which is itself repeated until answered.

#ifndef CLIENT_INTERNAL_SESSION_CORE_H_
#define CLIENT_INTERNAL_SESSION_CORE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/fence.grpc.pb.h"
#include "berth/v1/inventory.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/module.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/plan.grpc.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "client/cancellation.h"
#include "client/internal/call_attempts.h"
#include "client/internal/call_limits.h"
#include "client/internal/call_pause.h"
#include "client/internal/call_timer.h"
#include "client/internal/channel.h"
#include "client/internal/fork_guard.h"
#include "client/internal/permit_cache.h"
#include "client/internal/request_book.h"
#include "client/internal/settler.h"
#include "client/session_options.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/session_capsule.h"
#include "common/state_page.h"
#include "common/steady_clock.h"
#include "common/unique_fd.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace berth::internal {

// One RPC, sent once: called with a context that has deadline and credentials.
using Attempt = std::function<grpc::Status(grpc::ClientContext*)>;

// The daemon's services, on one gRPC channel of this session's own.
struct Stubs {
  explicit Stubs(std::shared_ptr<grpc::Channel> grpc_channel);
  // A connection is being made. Whoever ends this then leaves it to gRPC 1.51, which keeps it, for as long as it may
  // take or for ever.
  bool connecting() const;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::SessionService::Stub> session;
  const std::unique_ptr<v1::PermitService::Stub> permit;
  const std::unique_ptr<v1::MemoryService::Stub> memory;
  const std::unique_ptr<v1::FenceService::Stub> fence;
  const std::unique_ptr<v1::PlanService::Stub> plan;
  const std::unique_ptr<v1::ModuleService::Stub> module;
  const std::unique_ptr<v1::DeviceService::Stub> device;
  const std::unique_ptr<v1::InventoryService::Stub> inventory;
  const std::unique_ptr<v1::NodeService::Stub> node;
  const std::unique_ptr<v1::AdminService::Stub> admin;
};

class SessionCore;

// A mutating request from its number to its settlement. Unresolved at its end, it owes a ForgetRequest.
// Move-only; must not outlive its core.
class OpenRequest {
 public:
  OpenRequest(OpenRequest&& other) noexcept;
  OpenRequest& operator=(OpenRequest&&) = delete;
  ~OpenRequest();

  uint64_t sequence() const { return tag_.sequence; }
  // Writes the request's number and what the daemon may drop.
  void Fill(v1::RequestTag* tag) const;

  // The outcome is known: nothing is owed.
  void Settle();
  // Settles if `status` is the daemon's final word, else leaves the request to be forgotten.
  void Resolve(const absl::Status& status);

 private:
  friend class SessionCore;
  OpenRequest(SessionCore* core, RequestBook::Tag tag) : core_(core), tag_(tag) {}
  SessionCore* core_;
  const RequestBook::Tag tag_;
};

// Thread-safe.
class SessionCore {
 public:
  // Bounds one attempt of what is repeated in the background, and what a destructor may take.
  static constexpr absl::Duration kReturnPatience = absl::Seconds(2);
  // What who leaves a session waits for debts; later they go on alone.
  static constexpr absl::Duration kFlushPatience = absl::Milliseconds(500);

  // The last reference gone, the core settles what it owes: within kFlushPatience before that returns, else
  // in the background, where it lives on until the daemon has answered or the session is over.
  static absl::StatusOr<std::shared_ptr<SessionCore>> Open(const SessionOptions& options);
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  SessionId id() const { return credentials_.session; }
  const std::string& folder() const { return folder_; }
  bool joined() const { return joined_; }
  // Requires: not an observer's, as of the channel.
  const StatePageLayout& page() const { return **page_; }
  // For an attempt, as long as it lasts.
  const Stubs& stubs() const { return *live_->stubs; }
  Channel& channel() const { return *live_->channel; }
  ChannelId channel_id() const { return credentials_.channel; }
  // Without its daemon until the first stream is opened (session_fences.h).
  Fences& fences() const { return live_->fences; }
  PermitCache& permit_cache() { return permit_cache_; }
  // Whether the session was opened so (SessionOptions).
  bool caches_permits() const { return caches_permits_; }
  // Requests open, and debts not settled: 0 when nothing is under way and nothing is owed.
  size_t open_requests() const { return live_->book.open(); }

  // Whether the session is over for this process; a single load, for the nested acquire.
  bool over() const { return over_.load(std::memory_order_relaxed); }

  // Whether this process is a forked child of the one whose session it is.
  bool forked() const { return guard_.forked(); }

  // OK while the session can be used.
  absl::Status Check() const ABSL_LOCKS_EXCLUDED(mu_);

  // The limits of a call that does not wait for a lease.
  CallLimits DefaultLimits() const { return {.deadline = SteadyNow() + timeout_}; }

  // Opens a mutating request. Errors: as Check(); LIMIT.
  absl::StatusOr<OpenRequest> Begin();

  // Sends an RPC, and again where the daemon was away or restarting.
  absl::Status Call(const CallLimits& limits, const Attempt& attempt);

  // ---- Call() in parts, for who does not wait for it -----------------------------------------------------------

  // Says that an attempt is under way, until LeaveCall(); or why there can be none.
  absl::Status EnterCall() ABSL_LOCKS_EXCLUDED(mu_);
  void LeaveCall() ABSL_LOCKS_EXCLUDED(mu_);
  // Gives the context of one attempt its deadline and credentials.
  void PrepareCall(const CallLimits& limits, grpc::ClientContext* context) const;
  // Cancels the attempt when the session is lost, the caller cancels, or it is late and gRPC does not say so.
  class CallHooks {
   public:
    CallHooks(SessionCore* core, const CallLimits& limits, grpc::ClientContext* context)
        : lost_(&core->live_->lost, [context] { context->TryCancel(); }),
          cancelled_(limits.cancellation, [context] { context->TryCancel(); }),
          late_(&core->live_->timer, limits.deadline, [context] { context->TryCancel(); }) {}

   private:
    const Cancellation::Hook lost_;
    const Cancellation::Hook cancelled_;
    const CallTimer::Alarm late_;
  };
  // For who pauses between attempts.
  CallPauses& pauses() { return live_->pauses; }
  CallTimer& timer() { return live_->timer; }
  // What the answer of an attempt means to the caller.
  absl::Status JudgeCall(const CallLimits& limits, const grpc::Status& answer) const;
  // The pause before the call is sent again; nothing if `*status` is what it came to.
  std::optional<CallPause> PauseBeforeRetry(const CallLimits& limits, CallAttempts* attempts, absl::Status* status);

  // Opens a request that gives something back, sends what `make_attempt` makes of it and waits until `deadline`;
  // without an answer goes on in the background, and returns how the first try went.
  absl::Status GiveBack(const std::function<Attempt(const OpenRequest&)>& make_attempt,
                        absl::Time deadline = SteadyNow() + kReturnPatience);

  absl::StatusOr<std::string> Inherit() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status End(absl::Duration max_wait);

 private:
  friend class OpenRequest;

  // What needs threads or gRPC: leaked in a forked child, where neither exists.
  struct Live {
    Live(std::shared_ptr<Stubs> grpc_stubs, bool has_channel)
        : stubs(std::move(grpc_stubs)), pauses(&lost, has_channel) {}
    // Set but by TakeUnused(), and then null.
    std::shared_ptr<Stubs> stubs;
    RequestBook book;
    CallTimer timer;
    // Cancelled by the loss of the session: whatever call is under way goes with it.
    Cancellation lost;
    CallPauses pauses;
    // Before the channel, which delivers to it.
    Fences fences;
    std::unique_ptr<Channel> channel;
    Settler settler;
  };

  SessionCore(const SessionOptions& options, std::string folder, Credentials credentials,
              std::optional<StatePage> page, UniqueFd lifeline, UniqueFd capsule, UniqueFd channel);
  // Without a session: no channel, no page.
  static absl::StatusOr<std::shared_ptr<SessionCore>> OpenObserver(const SessionOptions& options);
  // Check(), and there is a session to act in. Errors: OBSERVER_ONLY_LOOKS too.
  absl::Status CheckActs() const ABSL_LOCKS_EXCLUDED(mu_);
  ~SessionCore();
  // What becomes of a core that nobody refers to any more: deletes it, now or when its debts are settled.
  static void Retire(SessionCore* core);
  void OnLost(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Another broker serves: what waits to connect does so now.
  void OnResumed() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CallOnce(const CallLimits& limits, const Attempt& attempt) ABSL_LOCKS_EXCLUDED(mu_);
  // Of a call whose time is over.
  absl::Status NoAnswer() const;
  // What connects to the daemon, once the session is over and no call is under way: gRPC would keep a connection to
  // whoever serves next. For KeepWhileConnecting(), without the lock.
  std::shared_ptr<Stubs> TakeUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has the settler keep `stubs`, which may be null, while a connection is being made.
  void KeepWhileConnecting(std::shared_ptr<Stubs> stubs);
  void OweForget(uint64_t sequence);

  const std::string folder_;
  const Credentials credentials_;
  const std::string encoded_credentials_;
  const absl::Duration timeout_;
  const bool joined_;
  const bool caches_permits_;
  const bool observer_;
  const std::optional<StatePage> page_;
  // Owns lifeline and channel.
  ForkGuard guard_;
  std::unique_ptr<Live> live_;
  // Its word lies in a page of live_.
  PermitCache permit_cache_;

  mutable Mutex mu_;
  // Of the session opened here; empty where it was joined.
  UniqueFd capsule_ ABSL_GUARDED_BY(mu_);
  // Not OK once the session is over for this process.
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  // Attempts under way.
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  // Set once with lost_, for over().
  std::atomic<bool> over_ = false;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_SESSION_CORE_H_
