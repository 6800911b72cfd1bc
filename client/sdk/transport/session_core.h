// SessionCore is the base of every part of the SDK: one session in one process. SessionCore owns the session's sockets,
// its gRPC channel, its request numbers and its unfinished releases.
//
// Life of a mutating request: Begin() opens the request. Call() sends the request; after a change of broker Call()
// sends the request again under the same number (call_attempts.h). Resolve() settles the request or queues a
// ForgetRequest, which the retry queue retries in the background until the daemon answers. A call that releases a lease
// goes through GiveBack(), which retries until the daemon answers.

#ifndef CLIENT_SDK_TRANSPORT_SESSION_CORE_H_
#define CLIENT_SDK_TRANSPORT_SESSION_CORE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <berth/cancellation.h>
#include <berth/end_notice.h>
#include <berth/ids.h>
#include <berth/session_options.h>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/sdk/permits/permit_cache.h"
#include "client/sdk/transport/call_attempts.h"
#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/call_pause.h"
#include "client/sdk/transport/call_timer.h"
#include "client/sdk/transport/fork_guard.h"
#include "client/sdk/transport/open_requests.h"
#include "client/sdk/transport/retry_queue.h"
#include "client/sdk/transport/return_patience.h"
#include "client/sdk/transport/session_entry.h"
#include "client/sdk/transport/side_channel.h"
#include "client/sdk/transport/stubs.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/patience.h"
#include "common/steady_clock.h"
#include "common/steady_cond_var.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "common/wire/state_page.h"

namespace google::protobuf {
class MessageLite;
}  // namespace google::protobuf

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace berth::v1 {
class RequestTag;
}  // namespace berth::v1

namespace berth::internal {

// Sends one RPC once, with a context that carries deadline and credentials.
using Attempt = std::function<grpc::Status(grpc::ClientContext*)>;

class SessionCore;

// A mutating request, from the allocation of its number to its settlement. The destructor of an unresolved request
// queues a ForgetRequest. Move-only; must not outlive its core.
class OpenRequest {
 public:
  OpenRequest(OpenRequest&& other) noexcept;
  OpenRequest& operator=(OpenRequest&&) = delete;
  ~OpenRequest();

  uint64_t sequence() const { return tag_.sequence; }
  // Writes the request's number, and the sequences whose answers the daemon may drop.
  void Fill(v1::RequestTag* tag) const;

  // Settles the request: the outcome is known, and no ForgetRequest is sent.
  void Settle();
  // Settles the request if `status` is the daemon's final answer. Otherwise the destructor queues a ForgetRequest.
  void Resolve(const absl::Status& status);

 private:
  friend class SessionCore;
  OpenRequest(SessionCore* core, OpenRequests::Tag tag) : core_(core), tag_(tag) {}
  SessionCore* core_;
  const OpenRequests::Tag tag_;
};

// Thread-safe.
class SessionCore {
 public:
  // Limit of one background retry attempt, of a release, and of the time that a destructor may take.
  static constexpr absl::Duration kReturnPatience = absl::Seconds(2);
  // Time that the release of the last reference waits for unfinished retries; later the retries go on in the
  // background.
  static constexpr absl::Duration kFlushPatience = absl::Milliseconds(500);

  // Opens a session or an observer. When the last reference is released, the core finishes its pending retries. The
  // release waits up to kFlushPatience. After that the core continues in the background until the daemon has answered
  // or the session is over.
  static absl::StatusOr<std::shared_ptr<SessionCore>> Open(const SessionOptions& given);
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  SessionId id() const { return credentials_.session; }
  const std::string& folder() const { return folder_; }
  bool joined() const { return joined_; }
  // Returns the state page of the daemon that this process joined last. Pages of earlier daemons stay mapped: a
  // reference into an earlier page reads there that its lease is over. Requires: the core is not an observer; the same
  // applies to channel().
  const StatePageLayout& page() const { return *current_page_.load(std::memory_order_acquire); }
  // Valid for the duration of an attempt.
  const Stubs& stubs() const { return *live_->stubs; }
  SideChannel& channel() const { return *live_->channel; }
  ChannelId channel_id() const { return credentials_.channel; }
  // Not connected to the daemon until the first stream is opened (session_fences.h).
  Fences& fences() const { return live_->fences; }
  PermitCache& permit_cache() { return permit_cache_; }
  // Whether SessionOptions enabled the permit cache.
  bool caches_permits() const { return caches_permits_; }
  // Number of open requests and pending retries; 0 when no request is open and no retry is pending.
  size_t open_requests() const { return live_->open_requests.open(); }

  // Whether the session is over for this process. A single atomic load, because the nested acquire calls it.
  bool over() const { return over_.load(std::memory_order_relaxed); }

  // Whether this process is a forked child of the process that opened the session.
  bool forked() const { return guard_.forked(); }

  // Returns OK while the session is usable.
  absl::Status Check() const ABSL_LOCKS_EXCLUDED(mu_);

  // Returns OK until this process has joined the session again because the daemon was stopped or killed. The fence
  // page, and with it every stream of the session, ended with the earlier daemon. Errors: kFailedPrecondition; the
  // message names the way out.
  absl::Status CheckStreams() const;

  // Returns the limits of a call that does not wait for a lease.
  CallLimits DefaultLimits() const { return {.deadline = SteadyNow() + timeout_}; }

  // Opens a mutating request. Errors: those of Check(); OBSERVER_ONLY_LOOKS; LIMIT.
  absl::StatusOr<OpenRequest> Begin();

  // Sends an RPC, and retries while the daemon is away or restarting.
  absl::Status Call(const CallLimits& limits, const Attempt& attempt);
  // As Call(), on the side channel while the session has not started gRPC: a short-lived process then needs none of
  // gRPC's threads. `attempt` is the same RPC over gRPC.
  absl::Status Call(const CallLimits& limits, attach::Method method, const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response, const Attempt& attempt);
  // Waits on the side channel for the delivery of an answered request, which waits for no lease any more. As
  // SideChannel::Await().
  absl::StatusOr<Arrival> Await(uint64_t sequence, absl::Time deadline);
  // Gives an acquisition back on the side channel. As SideChannel::GiveBack().
  absl::Status GiveBack(AcquisitionId acquisition, bool if_idle, absl::Time deadline);
  // Sends an RPC once, on the side channel. Errors: kUnimplemented, without details, where the caller must use gRPC.
  absl::Status Ask(const CallLimits& limits, attach::Method method, const google::protobuf::MessageLite& request,
                   google::protobuf::MessageLite* response) ABSL_LOCKS_EXCLUDED(mu_);

  // ---- Call() in parts, for asynchronous callers ----------------------------------------------------------------

  // Registers an attempt as under way, until LeaveCall(). The first attempt of the session starts gRPC. Errors: the
  // reason why no attempt may start; kResourceExhausted where this process may not have what gRPC needs.
  absl::Status EnterCall() ABSL_LOCKS_EXCLUDED(mu_);
  void LeaveCall() ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the deadline and the credentials in the context of one attempt.
  void PrepareCall(const CallLimits& limits, grpc::ClientContext* context) const;
  // Cancels the attempt when the session is lost, when the caller cancels, when the attempt gets no connection, or when
  // gRPC does not report an expired deadline.
  class CallHooks {
   public:
    CallHooks(SessionCore* core, const CallLimits& limits, grpc::ClientContext* context);

    // Whether the attempt was cancelled because it got no connection.
    bool unconnected() const { return unconnected_; }

   private:
    std::atomic<bool> unconnected_ = false;
    const Cancellation::Hook lost_;
    const Cancellation::Hook cancelled_;
    const CallTimer::Alarm late_;
    const CallTimer::Alarm no_connection_;
    const CallTimer::Alarm silent_;
  };
  // The pauses between attempts.
  CallPauses& pauses() { return live_->pauses; }
  CallTimer& timer() { return live_->timer; }
  // Converts the answer of an attempt to the status for the caller. `unconnected` is CallHooks's.
  absl::Status JudgeCall(const CallLimits& limits, const grpc::Status& answer, bool unconnected) const;
  // Returns the pause before the next attempt; nullopt if `*status` is the final result of the call. A final error that
  // follows from the end of the session then names that end.
  std::optional<CallPause> PauseBeforeRetry(const CallLimits& limits, CallAttempts* attempts, absl::Status* status);

  // ---- take_up.cc: grants that this process takes up (common/wire/take_up.h) --------------------------------------

  // Writes the request's number, and has Call() take the request's grant up.
  void FillToTakeUp(const OpenRequest& open, v1::RequestTag* tag, CallLimits* limits);
  // Takes up the grant of a call that has succeeded. Errors: PROCESS_STOPPED if the daemon has withdrawn the grant: the
  // call is sent again. kResourceExhausted if this process cannot take grants up: the caller must forget the request.
  absl::Status TakeUp(const CallLimits& limits);
  // Makes the daemon skip the waiting calls of Call(), before this process stops. ContinueWaits() sends them again.
  void PauseWaits() ABSL_LOCKS_EXCLUDED(pause_mu_);
  void ContinueWaits() ABSL_LOCKS_EXCLUDED(pause_mu_);

  // Opens a request that releases a resource, sends the attempt that `make_attempt` builds and waits until
  // ReturnDeadline(), or `deadline`. Without an answer the retry queue retries in the background. Returns the status of
  // the first try.
  absl::Status GiveBack(const std::function<Attempt(const OpenRequest&)>& make_attempt);
  absl::Status GiveBack(const std::function<Attempt(const OpenRequest&)>& make_attempt, absl::Time deadline);
  // Returns the deadline of a release that begins now.
  absl::Time ReturnDeadline() const { return return_patience_.Deadline(SteadyNow()); }
  // Begins the end of a process: all later releases, End() and the release of the last reference together take
  // kReturnPatience at most.
  void BeginLastReturns() { return_patience_.BeginLast(SteadyNow()); }

  absl::StatusOr<std::string> Inherit() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status End(absl::Duration max_wait);

 private:
  friend class OpenRequest;

  // State that needs threads or gRPC. Leaked in a forked child, where neither exists.
  struct Live {
    explicit Live(bool has_channel) : pauses(&lost, has_channel) {}
    // Null before the first attempt, and after TakeUnused() has moved the stubs out.
    std::shared_ptr<Stubs> stubs;
    OpenRequests open_requests;
    CallTimer timer;
    // Cancelled when the session is lost; this cancels every call under way.
    Cancellation lost;
    CallPauses pauses;
    // Declared before the channel, which delivers to it.
    Fences fences;
    std::unique_ptr<SideChannel> channel;
    RetryQueue retry_queue;
  };

  SessionCore(const SessionOptions& options, std::string folder, Credentials credentials,
              std::optional<StatePage> page, UniqueFd lifeline, UniqueFd session_credentials, UniqueFd channel);
  // Opens an observer: no session, no channel, no page.
  static absl::StatusOr<std::shared_ptr<SessionCore>> OpenObserver(const SessionOptions& options);
  // Returns OK if the daemon reports the session as ended or unknown. Otherwise returns the reason why this process
  // could not enter the session.
  absl::Status CheckHasEnded(const MissedSession& missed);
  // Runs Check(), and requires a session to act in. Errors: those of Check(); OBSERVER_ONLY_LOOKS.
  absl::Status CheckActs() const ABSL_LOCKS_EXCLUDED(mu_);
  ~SessionCore();
  // Deletes a core without references, now or when its pending retries are finished. On a thread of the SDK or of gRPC
  // (SdkThread), another thread does it.
  static void Retire(SessionCore* core);
  void OnLost(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Joins the session again, with the daemon that serves now. Errors: those of SideChannel::Events::rejoin.
  absl::StatusOr<UniqueFd> Rejoin() ABSL_LOCKS_EXCLUDED(mu_);
  // Connects the lifeline again. Errors: those of RejoinSession().
  absl::Status RejoinLifeline();
  // Whether the lifeline's other end is closed. False in a process that joined the session.
  bool LifelineHungUp() const;
  // Connects the lifeline again in the background, until the daemon has it or the session is closed.
  void OweLifeline();
  // Replaces the lifeline by the socket under the same fd number, because descendants know the lifeline by that number.
  absl::Status ReplaceLifeline(UniqueFd socket);
  // Handles the start of another broker: pending connection attempts run at once. Checks whether the earlier broker
  // lost the lifeline.
  void OnResumed() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CallOnce(const CallLimits& limits, const Attempt& attempt) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `once` until it succeeds, or fails with an error that a retry cannot overcome.
  absl::Status Retry(const CallLimits& limits, absl::FunctionRef<absl::Status()> once);
  // Returns WAIT_TIMED_OUT where the wait's limit passed while this process was stopped, and else `status`.
  static absl::Status JudgeLate(const CallLimits& limits, absl::Status status);
  // Returns `status`, with the reason why the session ended if the error follows from that end.
  absl::Status NameEnd(absl::Status status);
  // Waits while the calls are paused.
  void AwaitContinue() ABSL_LOCKS_EXCLUDED(pause_mu_);
  // Returns the error of a call whose deadline has passed, or that got no connection.
  absl::Status NoAnswer() const;
  // Returns when an attempt that starts now has waited long enough for a connection; infinite if it has one. A stream
  // may still lose that connection before it has used it.
  absl::Time ConnectDeadline(const CallLimits& limits) const;
  // Returns when an attempt that starts now reports a silent daemon; infinite without on_silence.
  absl::Time SilenceDeadline() const;
  // Whether a daemon answers such a call soon: one that waits for a lease, or has a late deadline, may take longer.
  bool AnswersSoon(const CallLimits& limits) const;
  // Reports a silent daemon during a use of the side channel (side_calls.cc).
  class SilenceWatch;
  // Whether no connection can be expected. A session outlasts a stop of the daemon and the slow start of a broker. A
  // stream, of which `received` comes from its CallLimits, does not.
  // Requires: an attempt is under way.
  bool CannotConnect(const std::atomic<bool>* received) const;
  // Moves the stubs out once the session is over and no call is under way; otherwise returns null. Without this, gRPC
  // would stay connected to the next daemon. The caller passes the result to KeepWhileConnecting() after it has
  // released the lock.
  std::shared_ptr<Stubs> TakeUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Transfers `stubs` to the retry queue while gRPC is establishing a connection, and on a thread of the SDK or of gRPC
  // (SdkThread). `stubs` may be null.
  void KeepWhileConnecting(std::shared_ptr<Stubs> stubs);
  void OweForget(uint64_t sequence);

  const std::string folder_;
  const Credentials credentials_;
  const std::string encoded_credentials_;
  const absl::Duration timeout_;
  const bool joined_;
  const bool caches_permits_;
  const bool observer_;
  // SessionOptions::on_silence; may be empty.
  const std::function<void(const std::string& socket)> on_silence_;
  // Paths of the sockets on which processes join sessions, and of gRPC's.
  const std::string attach_path_;
  const std::string socket_path_;
  // Owns the lifeline, the channel socket and the session credentials.
  ForkGuard guard_;
  std::unique_ptr<Live> live_;
  // The permit slot of the cache lies in a page that `live_` owns.
  PermitCache permit_cache_;

  std::atomic<const StatePageLayout*> current_page_ = nullptr;
  // Set by the channel's thread after it has joined the session again.
  std::atomic<bool> rejoined_ = false;
  // Set when the last reference is released.
  std::atomic<bool> closing_ = false;
  ReturnPatience return_patience_{Patient(kReturnPatience)};

  Mutex pause_mu_;
  SteadyCondVar continued_ ABSL_GUARDED_BY(pause_mu_);
  bool waits_paused_ ABSL_GUARDED_BY(pause_mu_) = false;

  mutable Mutex mu_;
  // One page for each daemon that this process has joined; empty for an observer.
  std::deque<StatePage> pages_ ABSL_GUARDED_BY(mu_);
  // Not OK once the session is over for this process.
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  // Number of attempts under way.
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  // Set once, together with lost_; read by over().
  std::atomic<bool> over_ = false;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_SESSION_CORE_H_
