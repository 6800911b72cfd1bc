#include "client/sdk/transport/session_core.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <berth/end_notice.h>
#include <berth/error.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "client/sdk/transport/attach.h"
#include "client/sdk/transport/environment.h"
#include "client/sdk/transport/sdk_thread.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/os/os_error.h"
#include "common/os/process_capacity.h"
#include "common/os/process_start.h"
#include "common/patience.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "common/thread.h"
#include "grpcpp/client_context.h"

namespace berth::internal {
namespace {

// Limit for a connection to be accepted. The supervisor keeps the listening sockets open while brokers change. The next
// broker serves a client that stays in the queue first, and serves a client that reconnects later.
constexpr absl::Duration kAcceptPatience = absl::Seconds(10);
// Limit for the daemon's answer to a rejoin: a daemon that has just started receives the rejoins of all sessions at
// once.
constexpr absl::Duration kRejoinPatience = absl::Seconds(10);

// Number of refusals after which a lost lifeline is given up. The pauses between them add up to about ten seconds.
constexpr int kMaxLifelineRefusals = 15;

// Resources that a session needs at its start: the channel's thread; fds for the lifeline, the session credentials, the
// channel and its two eventfds, and the fds that arrive with a message.
ProcessNeeds SessionNeeds() { return {.threads = 1, .memory = MiB(2), .fds = 7}; }

// Resources that the first RPC needs. Threads: those of gRPC, which aborts or hangs without them, and the timer's
// thread. Fds: gRPC's connection, five for epoll and eventfds, and the folder's if its path has a comma.
ProcessNeeds CallNeeds(absl::string_view socket) {
  return {.threads = GrpcThreads() + 1, .memory = MiB(16), .fds = absl::StrContains(socket, ',') ? 7 : 6};
}

// Whether `status` is the daemon's final answer to a request. A status that ends a wait is not final: the grant and the
// end of the wait may have crossed.
bool IsFinal(const absl::Status& status) {
  if (status.ok()) return true;
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return false;
    default:
      return GetErrorDetails(status).has_value();
  }
}

// Whether a released resource is released or can no longer be released. LIMIT only means: retry later.
bool IsReturned(const absl::Status& status) { return IsFinal(status) && !absl::IsResourceExhausted(status); }

// Whether Ask() left the call to gRPC.
bool MustUseGrpc(const absl::Status& status) {
  return absl::IsUnimplemented(status) && !GetErrorDetails(status).has_value();
}

absl::Status ClearCloseOnExec(int fd) {
  if (::fcntl(fd, F_SETFD, 0) < 0) return OsError("fcntl(F_SETFD)", errno);
  return absl::OkStatus();
}

}  // namespace

OpenRequest::OpenRequest(OpenRequest&& other) noexcept
    : core_(std::exchange(other.core_, nullptr)), tag_(other.tag_) {}

OpenRequest::~OpenRequest() {
  if (core_ != nullptr) core_->OweForget(tag_.sequence);
}

void OpenRequest::Fill(v1::RequestTag* tag) const {
  tag->set_sequence(tag_.sequence);
  tag->set_answered_below(tag_.answered_below);
  tag->mutable_open()->Add(tag_.open.begin(), tag_.open.end());
}

void OpenRequest::Settle() {
  if (core_ != nullptr) core_->live_->open_requests.Settle(tag_.sequence);
  core_ = nullptr;
}

void OpenRequest::Resolve(const absl::Status& status) {
  if (IsFinal(status)) Settle();
}

SessionCore::SessionCore(const SessionOptions& options, std::string folder, Credentials credentials,
                         std::optional<StatePage> page, UniqueFd lifeline, UniqueFd session_credentials,
                         UniqueFd channel)
    : folder_(std::move(folder)),
      credentials_(credentials),
      encoded_credentials_(EncodeCredentials(credentials)),
      timeout_(options.timeout),
      joined_(!lifeline),
      caches_permits_(options.cache_permits),
      observer_(options.observer),
      on_silence_(options.on_silence),
      attach_path_(AttachPath(folder_, options.admin)),
      socket_path_(SocketPath(folder_, options)),
      guard_(std::move(lifeline), std::move(channel), std::move(session_credentials)),
      live_(std::make_unique<Live>(/*has_channel=*/!options.observer)) {
  if (!page.has_value()) return;
  MutexLock lock(&mu_);
  current_page_ = &*pages_.emplace_back(*std::move(page));
}

absl::StatusOr<std::shared_ptr<SessionCore>> SessionCore::Open(const SessionOptions& given) {
  SessionOptions options = given;
  // A caller's own time-out stays as it is.
  if (options.timeout == SessionOptions().timeout) options.timeout = Patient(options.timeout);
  BERTH_RETURN_IF_ERROR(CheckNotForked());
  BERTH_RETURN_IF_ERROR(CheckCapacity("a session", SessionNeeds()));
  if (options.observer) return OpenObserver(options);
  BERTH_ASSIGN_OR_RETURN(SessionEntry entry, EnterSession(options));
  const Credentials credentials = {.session = entry.session_credentials.session,
                                   .channel = entry.joined.channel,
                                   .secret = entry.session_credentials.secret};
  std::shared_ptr<SessionCore> core(
      new SessionCore(options, std::move(entry.folder), credentials, std::move(entry.joined.page),
                      std::move(entry.lifeline), std::move(entry.credentials_fd), std::move(entry.joined.socket)),
      &SessionCore::Retire);
  // The channel's thread ends before its core does.
  BERTH_ASSIGN_OR_RETURN(
      core->live_->channel,
      SideChannel::Start(core->guard_.channel(), &core->live_->fences,
                         {.on_lost = [raw = core.get()](const absl::Status& why) { raw->OnLost(why); },
                          .rejoin = [raw = core.get()] { return raw->Rejoin(); },
                          .on_resumed = [raw = core.get()] { raw->OnResumed(); },
                          .on_return = [raw = core.get()] { raw->live_->pauses.OnReturn(); }}));
  if (entry.missed.has_value()) BERTH_RETURN_IF_ERROR(core->CheckHasEnded(*entry.missed));
  return core;
}

absl::Status SessionCore::CheckHasEnded(const MissedSession& missed) {
  v1::GetSessionRequest request;
  request.set_session(missed.session.value());
  v1::Session session;
  const absl::Status found = Call(DefaultLimits(), [&](grpc::ClientContext* context) {
    return stubs().Of<v1::SessionService>().GetSession(context, request, &session);
  });
  if (IsRefusal(found, Reason::kNotFound)) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(found);
  return session.state() == v1::Session::ACTIVE ? missed.why : absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SessionCore>> SessionCore::OpenObserver(const SessionOptions& options) {
  std::string folder = Absolute(options.folder.empty() ? DefaultFolder() : options.folder);
  BERTH_RETURN_IF_ERROR(CheckMayConnect(SocketPath(folder, options)));
  return std::shared_ptr<SessionCore>(new SessionCore(options, std::move(folder), Credentials(), std::nullopt,
                                                      UniqueFd(), UniqueFd(), UniqueFd()),
                                      &SessionCore::Retire);
}

void SessionCore::Retire(SessionCore* core) {
  const std::unique_ptr<SideChannel>& channel = core->live_->channel;
  RetryQueue& retry_queue = core->live_->retry_queue;
  if (core->guard_.forked() || channel == nullptr) {
    delete core;
    return;
  }
  if (SdkThread::IsCurrent()) {
    // Without a thread, the session stays open until the process ends.
    absl::StatusOr<Thread> thread = Thread::Start("the end of a session", [core] { Retire(core); });
    if (thread.ok()) thread->detach();
    return;
  }
  core->closing_ = true;
  // Notices now that the daemon has ended: the sockets must then stay open until the next daemon has seen them close.
  channel->TakeIn();
  // The channel's thread sends; this retry entry only waits until all is sent.
  if (!channel->sent()) retry_queue.Add([&channel] { return channel->sent(); });
  std::shared_ptr<Stubs> stubs;
  {
    MutexLock lock(&core->mu_);
    stubs = core->live_->stubs;
  }
  core->KeepWhileConnecting(std::move(stubs));
  if (channel->away()) {
    // The next daemon counts the session as alive while this process lives, unless it sees the session's sockets close.
    retry_queue.Add([&channel] { return !channel->away(); });
    return retry_queue.FinishWith([core] { delete core; });
  }
  if (retry_queue.Flush(std::clamp(core->ReturnDeadline() - SteadyNow(), absl::ZeroDuration(), kFlushPatience))) {
    delete core;
  } else {
    retry_queue.FinishWith([core] { delete core; });
  }
}

SessionCore::~SessionCore() {
  if (guard_.forked()) {
    [[maybe_unused]] Live* const leaked = live_.release();
    return;
  }
  // Stop the threads first, because they use the rest.
  live_->lost.Cancel();
  live_->retry_queue.Stop();
  live_->channel.reset();
}

void SessionCore::OnLost(const absl::Status& why) {
  std::shared_ptr<Stubs> unused;
  {
    MutexLock lock(&mu_);
    if (lost_.ok()) {
      lost_ = absl::UnavailableError(
          absl::StrCat("session ", id().value(), " is over for this process: ", why.message()));
      over_.store(true, std::memory_order_relaxed);
    }
    unused = TakeUnused();
  }
  KeepWhileConnecting(std::move(unused));
  live_->lost.Cancel();
}

absl::StatusOr<UniqueFd> SessionCore::Rejoin() {
  if (!joined_) {
    const absl::Status lifeline = RejoinLifeline();
    // A refusal means that the daemon already has the lifeline or that the session is over. The answer to the channel's
    // rejoin tells which.
    if (!lifeline.ok() && !IsRejoinRefused(lifeline)) return lifeline;
  }
  BERTH_ASSIGN_OR_RETURN(JoinedChannel joined,
                         RejoinSession(attach_path_, credentials_, kRejoinPatience, &live_->lost));
  {
    MutexLock lock(&mu_);
    current_page_.store(&*pages_.emplace_back(std::move(joined.page)), std::memory_order_release);
  }
  rejoined_ = true;
  if (const std::optional<PermitCache::Use> idle = permit_cache_.Close()) {
    const auto release = [&](const OpenRequest& open) -> Attempt {
      v1::ReleasePermitRequest request;
      open.Fill(request.mutable_request());
      request.set_acquisition(idle->acquisition);
      return [this, request](grpc::ClientContext* context) {
        v1::ReleasePermitResponse response;
        return stubs().Of<v1::PermitService>().ReleasePermit(context, request, &response);
      };
    };
    // This thread must not block, so the retry queue makes all attempts but the first.
    GiveBack(release, SteadyNow()).IgnoreError();
  }
  return std::move(joined.socket);
}

absl::Status SessionCore::RejoinLifeline() {
  Credentials lifeline = credentials_;
  lifeline.channel = ChannelId();
  BERTH_ASSIGN_OR_RETURN(JoinedChannel connected,
                         RejoinSession(attach_path_, lifeline, kRejoinPatience, &live_->lost));
  return ReplaceLifeline(std::move(connected.socket));
}

bool SessionCore::LifelineHungUp() const {
  if (joined_) return false;
  pollfd entry = {.fd = guard_.lifeline(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void SessionCore::OweLifeline() {
  live_->retry_queue.Add([this, refusals = 0]() mutable {
    if (closing_ || over() || !LifelineHungUp()) return true;
    const absl::Status rejoined = RejoinLifeline();
    // The daemon has an earlier connection as the lifeline, and will see that it has ended.
    if (IsRefusal(rejoined, Reason::kInvalidField)) return ++refusals == kMaxLifelineRefusals;
    // Otherwise looks again after a pause: this broker, too, may end before the fd store has the lifeline.
    return IsRejoinRefused(rejoined);
  });
}

absl::Status SessionCore::ReplaceLifeline(UniqueFd socket) {
  const int lifeline = guard_.lifeline();
  const int flags = ::fcntl(lifeline, F_GETFD);
  if (flags < 0) return OsError("fcntl(F_GETFD)", errno);
  // Descendants that inherit the new lifeline hold the session as earlier descendants do.
  const int close_on_exec = (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0;
  if (::dup3(socket.get(), lifeline, close_on_exec) < 0) return OsError("dup3", errno);
  return absl::OkStatus();
}

absl::Status SessionCore::CheckStreams() const {
  if (!rejoined_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "every stream of the session ended at the daemon's restart: open a new session for streams");
}

void SessionCore::OnResumed() {
  // A broker answers for the lifeline before the fd store has it. If the earlier broker ended in between, the lifeline
  // has hung up by now: a broker starts after the end of the earlier one.
  if (LifelineHungUp()) OweLifeline();
  std::shared_ptr<Stubs> stubs;
  {
    MutexLock lock(&mu_);
    stubs = live_->stubs;
  }
  if (stubs != nullptr) stubs->ConnectNow();
}

absl::Status SessionCore::Check() const {
  BERTH_RETURN_IF_ERROR(guard_.Check());
  MutexLock lock(&mu_);
  return lost_;
}

absl::Status SessionCore::CheckActs() const {
  if (!observer_) return Check();
  return Refuse(Reason::kObserverOnlyLooks,
                "an observer's connection is read-only: connect to {socket}, or as an operator to {admin}",
                {{"socket", "berthd.sock"}, {"admin", "admin.sock"}});
}

absl::StatusOr<OpenRequest> SessionCore::Begin() {
  BERTH_RETURN_IF_ERROR(CheckActs());
  BERTH_ASSIGN_OR_RETURN(OpenRequests::Tag tag, live_->open_requests.Begin());
  return OpenRequest(this, tag);
}

SessionCore::CallHooks::CallHooks(SessionCore* core, const CallLimits& limits, grpc::ClientContext* context)
    : lost_(&core->live_->lost, [context] { context->TryCancel(); }),
      cancelled_(limits.cancellation, [context] { context->TryCancel(); }),
      late_(&core->live_->timer, limits.deadline, [context] { context->TryCancel(); }),
      no_connection_(&core->live_->timer, core->ConnectDeadline(limits),
                     [this, core, context, received = limits.received] {
                       if (!core->CannotConnect(received)) return;
                       unconnected_ = true;
                       context->TryCancel();
                     }),
      silent_(&core->live_->timer, core->SilenceDeadline(), [core, soon = core->AnswersSoon(limits)] {
        if (soon || !core->stubs().connected()) core->on_silence_(core->socket_path_);
      }) {}

absl::Status SessionCore::EnterCall() {
  BERTH_RETURN_IF_ERROR(guard_.Check());
  MutexLock lock(&mu_);
  BERTH_RETURN_IF_ERROR(lost_);
  if (live_->stubs == nullptr) {
    BERTH_RETURN_IF_ERROR(CheckCapacity("a call to the daemon", CallNeeds(socket_path_)));
    live_->stubs = std::make_shared<Stubs>(socket_path_, kAcceptPatience);
  }
  live_->stubs->FindSocket();
  ++calls_;
  return absl::OkStatus();
}

void SessionCore::LeaveCall() {
  std::shared_ptr<Stubs> unused;
  {
    MutexLock lock(&mu_);
    --calls_;
    unused = TakeUnused();
  }
  KeepWhileConnecting(std::move(unused));
}

std::shared_ptr<Stubs> SessionCore::TakeUnused() {
  if (lost_.ok() || calls_ > 0) return nullptr;
  return std::move(live_->stubs);
}

void SessionCore::KeepWhileConnecting(std::shared_ptr<Stubs> stubs) {
  if (stubs == nullptr || (!stubs->connecting() && !SdkThread::IsCurrent())) return;
  // gRPC reads the connection's socket only in a thread that waits for a state change. The retry queue's thread then
  // destroys the stubs.
  live_->retry_queue.Add([stubs = std::move(stubs)] {
    return stubs->AwaitConnecting(SteadyNow() + kFlushPatience);
  });
}

void SessionCore::PrepareCall(const CallLimits& limits, grpc::ClientContext* context) const {
  // The call waits for a daemon that restarts. A daemon that is gone ends the session, and with the session the call.
  context->set_wait_for_ready(true);
  SetDeadline(limits.deadline, context);
  context->AddMetadata(kCredentialsHeader, encoded_credentials_);
}

absl::Status SessionCore::NoAnswer() const {
  bool lacks_connection;
  {
    MutexLock lock(&mu_);
    lacks_connection = live_->stubs != nullptr && !live_->stubs->connected();
  }
  std::string why;
  if (lacks_connection) {
    const absl::Status reached = CheckMayConnect(socket_path_);
    why = reached.ok() ? absl::StrCat("it accepted no connection on ", socket_path_,
                                      "; it may be restarting, or have no file descriptor for another client, which "
                                      "its log reports")
                       : std::string(reached.message());
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the daemon in ", folder_, " did not answer in time", why.empty() ? "" : ": ", why));
}

absl::Time SessionCore::ConnectDeadline(const CallLimits& limits) const {
  const absl::Time deadline = SteadyNow() + timeout_;
  const bool waits = limits.received != nullptr || !stubs().connected();
  return deadline < limits.deadline && waits ? deadline : absl::InfiniteFuture();
}

bool SessionCore::CannotConnect(const std::atomic<bool>* received) const {
  if (stubs().connected() || (received != nullptr && *received)) return false;
  return observer_ || received != nullptr || (!channel().away() && !CheckMayConnect(socket_path_).ok());
}

absl::Status SessionCore::JudgeCall(const CallLimits& limits, const grpc::Status& answer, bool unconnected) const {
  const absl::Status status = FromGrpc(answer);
  if (absl::IsDeadlineExceeded(status) && !GetErrorDetails(status).has_value()) return NoAnswer();
  if (!absl::IsCancelled(status)) return status;
  BERTH_RETURN_IF_ERROR(Check());
  if (unconnected) return NoAnswer();
  // If neither the caller nor the daemon's core cancelled the call, a stopping server ended it.
  const bool asked_for = limits.cancellation != nullptr && limits.cancellation->cancelled();
  if (asked_for || GetErrorDetails(status).has_value()) return status;
  if (SteadyNow() >= limits.deadline) return NoAnswer();
  return absl::UnavailableError("the daemon ended the call");
}

std::optional<CallPause> SessionCore::PauseBeforeRetry(const CallLimits& limits, CallAttempts* attempts,
                                                       absl::Status* status) {
  std::optional<CallPause> pause;
  if (Check().ok()) pause = live_->pauses.Before(limits, SteadyNow(), attempts, status);
  if (!pause.has_value()) *status = NameEnd(*std::move(status));
  return pause;
}

absl::Status SessionCore::NameEnd(absl::Status status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  const bool may_follow = details.has_value()
                              ? IsRejoinRefused(status) || details->reason == Reason::kShuttingDown
                              : absl::IsUnavailable(status);
  // A process that joined no channel gets no notice.
  if (!may_follow || live_->channel == nullptr) return status;
  const std::optional<EndNotice> end = live_->channel->TakeInEnd();
  if (!end.has_value()) return status;
  absl::Status named(status.code(), details.has_value() ? absl::StrCat(status.message(), ": ", Describe(*end))
                                                        : absl::StrCat("session ", id().value(), " is over: ",
                                                                       Describe(*end)));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) { named.SetPayload(url, value); });
  return named;
}

absl::Status SessionCore::CallOnce(const CallLimits& limits, const Attempt& attempt) {
  BERTH_RETURN_IF_ERROR(EnterCall());
  const absl::Cleanup leave = [this] { LeaveCall(); };
  grpc::ClientContext context;
  PrepareCall(limits, &context);
  const CallHooks hooks(this, limits, &context);
  const grpc::Status answer = attempt(&context);
  return JudgeCall(limits, answer, hooks.unconnected());
}

absl::Status SessionCore::Call(const CallLimits& limits, const Attempt& attempt) {
  return Retry(limits, [&] { return CallOnce(limits, attempt); });
}

absl::Status SessionCore::Call(const CallLimits& limits, attach::Method method,
                               const google::protobuf::MessageLite& request, google::protobuf::MessageLite* response,
                               const Attempt& attempt) {
  return Retry(limits, [&] {
    const absl::Status asked = Ask(limits, method, request, response);
    return MustUseGrpc(asked) ? CallOnce(limits, attempt) : asked;
  });
}

absl::Status SessionCore::Retry(const CallLimits& limits, absl::FunctionRef<absl::Status()> once) {
  for (CallAttempts attempts;;) {
    attempts.Sent(SteadyNow());
    absl::Status status = once();
    if (status.ok()) status = TakeUp(limits);
    status = JudgeLate(limits, std::move(status));
    const std::optional<CallPause> pause = PauseBeforeRetry(limits, &attempts, &status);
    if (!pause.has_value()) return status;
    live_->pauses.AwaitEnd(limits, *pause);
    AwaitContinue();
    if (over()) return NameEnd(std::move(status));
  }
}

void SessionCore::OweForget(uint64_t sequence) {
  if (guard_.forked()) return;
  live_->retry_queue.Add([this, sequence] {
    v1::ForgetRequestRequest request;
    request.set_sequence(sequence);
    const absl::Status status =
        CallOnce({.deadline = SteadyNow() + Patient(kReturnPatience)}, [&](grpc::ClientContext* context) {
          v1::ForgetRequestResponse response;
          return stubs().Of<v1::SessionService>().ForgetRequest(context, request, &response);
        });
    if (!IsReturned(status) && Check().ok()) return false;
    live_->open_requests.Settle(sequence);
    return true;
  });
}

absl::Status SessionCore::GiveBack(const std::function<Attempt(const OpenRequest&)>& make_attempt) {
  return GiveBack(make_attempt, ReturnDeadline());
}

absl::Status SessionCore::GiveBack(const std::function<Attempt(const OpenRequest&)>& make_attempt,
                                   absl::Time deadline) {
  BERTH_RETURN_IF_ERROR(Check());
  OpenRequest request(this, live_->open_requests.BeginReturn());
  const uint64_t sequence = request.sequence();
  Attempt attempt = make_attempt(request);
  // A release is retried, never forgotten.
  request.core_ = nullptr;
  const absl::Status status = Call({.deadline = deadline}, attempt);
  if (IsReturned(status) || !Check().ok()) {
    live_->open_requests.Settle(sequence);
    return status;
  }
  live_->retry_queue.Add([this, sequence, attempt = std::move(attempt)] {
    const absl::Status later = CallOnce({.deadline = SteadyNow() + Patient(kReturnPatience)}, attempt);
    if (!IsReturned(later) && Check().ok()) return false;
    live_->open_requests.Settle(sequence);
    return true;
  });
  return status;
}

absl::StatusOr<std::string> SessionCore::Inherit() {
  BERTH_RETURN_IF_ERROR(CheckActs());
  if (joined_) {
    BERTH_ASSIGN_OR_RETURN(std::optional<SessionName> name, SessionNameFromEnvironment());
    if (!name.has_value()) {
      return absl::FailedPreconditionError(absl::StrCat(kSessionVariable, " was removed from the environment"));
    }
    return absl::StrCat(kSessionVariable, "=", FormatSessionName(*name));
  }
  MutexLock lock(&mu_);
  BERTH_RETURN_IF_ERROR(ClearCloseOnExec(guard_.lifeline()));
  BERTH_RETURN_IF_ERROR(ClearCloseOnExec(guard_.session_credentials()));
  guard_.KeepLifeline();
  const int self = ::getpid();
  BERTH_ASSIGN_OR_RETURN(const std::optional<uint64_t> start, StartTicksOf(self));
  return absl::StrCat(kSessionVariable, "=",
                      FormatSessionName({.lifeline = guard_.lifeline(),
                                         .session_credentials = guard_.session_credentials(),
                                         .opener = self,
                                         .opener_start = start.value_or(0),
                                         .pid_namespace = PidNamespace(),
                                         .session = id()}));
}

absl::Status SessionCore::End(absl::Duration max_wait) {
  BERTH_RETURN_IF_ERROR(CheckActs());
  const CallLimits limits = {.deadline = return_patience_.Bound(SteadyNow() + std::min(timeout_, max_wait))};
  v1::Session session;
  const absl::Status status =
      Call(limits, attach::Method::kEndSession, v1::EndSessionRequest(), &session, [&](grpc::ClientContext* context) {
        return stubs().Of<v1::SessionService>().EndSession(context, v1::EndSessionRequest(), &session);
      });
  // The daemon's message on the channel may still be under way. A caller that has learned of the session's end must
  // find no valid lease.
  if (status.ok()) channel().EndLeases();
  // The end of the channel may overtake the answer; both mean the same.
  return Check().ok() ? status : absl::OkStatus();
}

}  // namespace berth::internal
