#include "client/internal/session_core.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/internal/attach.h"
#include "client/internal/environment.h"
#include "client/status_conversion.h"
#include "common/error.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace berth::internal {
namespace {

// What the fd of a capsule (session_capsule.h) is a link to.
constexpr char kCapsuleTarget[] = "/memfd:berth-session";
// How long a connection may wait to be accepted. The vault keeps the listening sockets while brokers change: who
// waits there is served first by the next one, who leaves and comes again is not.
constexpr absl::Duration kAcceptPatience = absl::Seconds(10);

// Whether `status` is the daemon's last word on a request. Words on a wait that ended are none: the grant and
// the end of the wait may have crossed.
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

// Whether something given back is back, or cannot be any more. A limit only says: later.
bool IsReturned(const absl::Status& status) { return IsFinal(status) && !absl::IsResourceExhausted(status); }

// The socket that a session's calls go to.
std::string SocketPath(const std::string& folder, const SessionOptions& options) {
  if (options.observer && !options.admin) return absl::StrCat(folder, "/observer.sock");
  return absl::StrCat(folder, options.admin ? "/admin.sock" : "/berthd.sock");
}

std::shared_ptr<grpc::Channel> MakeGrpcChannel(const std::string& folder, const SessionOptions& options) {
  grpc::ChannelArguments arguments;
  // A connection of its own per session: the daemon counts and cuts them by session.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Back soon where there was nothing to connect to; gRPC's own limit grows to two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // By its name the least pause; it is what one attempt may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(absl::ToInt64Milliseconds(kAcceptPatience)));
  // A proxy of the environment is none for a Unix socket.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // What nobody has a use for here takes its time with every call. Of what a minimal stack leaves out deadlines are
  // wanted; calls are sent again by CallAttempts, nobody counts them, and the line is as wide as memory is.
  arguments.SetInt(GRPC_ARG_MINIMAL_STACK, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_DEADLINE_CHECKS, 1);
  for (const char* const unused : {GRPC_ARG_ENABLE_RETRIES, GRPC_ARG_ENABLE_CHANNELZ, GRPC_ARG_HTTP2_BDP_PROBE}) {
    arguments.SetInt(unused, 0);
  }
  return grpc::CreateCustomChannel(absl::StrCat("unix:", SocketPath(folder, options)),
                                   grpc::InsecureChannelCredentials(), arguments);
}

gpr_timespec ToGrpc(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const timespec time = absl::ToTimespec(deadline);
  return {.tv_sec = time.tv_sec, .tv_nsec = static_cast<int32_t>(time.tv_nsec), .clock_type = GPR_CLOCK_MONOTONIC};
}

// Where the daemon is and what proves the session.
struct Entry {
  std::string folder;
  SessionCapsule capsule;
  UniqueFd lifeline;
  UniqueFd capsule_fd;
};

// Reads the capsule from the process that keeps it, of this user's; kNotFound where there is no such.
absl::StatusOr<SessionCapsule> ReadKeptCapsule(const InheritedFds& fds) {
  const std::string path = absl::StrCat("/proc/", fds.keeper, "/fd/", fds.capsule);
  // Its number may be somebody else's by now, and opening what that one has under it may do anything.
  std::error_code error;
  const std::string target = std::filesystem::read_symlink(path, error).string();
  if (error || !absl::StartsWith(target, kCapsuleTarget)) return absl::NotFoundError("no capsule is kept");
  const UniqueFd kept(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!kept) return OsError(path, errno);
  return ReadCapsule(kept.get());
}

absl::StatusOr<Entry> Inherited(const InheritedFds& fds, const SessionOptions& options) {
  absl::StatusOr<SessionCapsule> capsule = ReadCapsule(fds.capsule);
  if (!capsule.ok() && fds.keeper != 0) {
    absl::StatusOr<SessionCapsule> kept = ReadKeptCapsule(fds);
    if (kept.ok()) capsule = std::move(kept);
  }
  if (!capsule.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(kSessionVariable, "=", FormatInheritedFds(fds),
                                                      " names a session that this process did not inherit (",
                                                      capsule.status().message(),
                                                      "): keep these fds open, or unset the variable"));
  }
  // The capsule's folder is where the opener saw it: in a container it may be mounted elsewhere.
  std::string folder = options.folder;
  if (folder.empty()) folder = FolderFromEnvironment();
  if (folder.empty()) folder = capsule->folder;
  folder = Absolute(folder);
  BERTH_RETURN_IF_ERROR(CheckMayConnect(SocketPath(folder, options)));
  return Entry{.folder = std::move(folder), .capsule = *std::move(capsule)};
}

absl::StatusOr<Entry> Enter(const SessionOptions& options) {
  if (!options.always_new) {
    BERTH_ASSIGN_OR_RETURN(std::optional<InheritedFds> fds, InheritedFdsFromEnvironment());
    if (fds.has_value()) return Inherited(*fds, options);
  }
  const std::string folder = Absolute(options.folder.empty() ? DefaultFolder() : options.folder);
  BERTH_RETURN_IF_ERROR(CheckMayConnect(SocketPath(folder, options)));
  BERTH_ASSIGN_OR_RETURN(OpenedSession opened,
                         OpenSession(AttachPath(folder, options.admin), options.label, options.timeout));
  return Entry{.folder = folder,
               .capsule = std::move(opened.capsule),
               .lifeline = std::move(opened.lifeline),
               .capsule_fd = std::move(opened.capsule_fd)};
}

absl::Status ClearCloseOnExec(int fd) {
  if (::fcntl(fd, F_SETFD, 0) < 0) return OsError("fcntl(F_SETFD)", errno);
  return absl::OkStatus();
}

}  // namespace

Stubs::Stubs(std::shared_ptr<grpc::Channel> grpc_channel)
    : channel(std::move(grpc_channel)),
      session(v1::SessionService::NewStub(channel)),
      permit(v1::PermitService::NewStub(channel)),
      memory(v1::MemoryService::NewStub(channel)),
      fence(v1::FenceService::NewStub(channel)),
      plan(v1::PlanService::NewStub(channel)),
      module(v1::ModuleService::NewStub(channel)),
      device(v1::DeviceService::NewStub(channel)),
      inventory(v1::InventoryService::NewStub(channel)),
      node(v1::NodeService::NewStub(channel)),
      admin(v1::AdminService::NewStub(channel)) {}

bool Stubs::connecting() const { return channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_CONNECTING; }

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
  if (core_ != nullptr) core_->live_->book.Settle(tag_.sequence);
  core_ = nullptr;
}

void OpenRequest::Resolve(const absl::Status& status) {
  if (IsFinal(status)) Settle();
}

SessionCore::SessionCore(const SessionOptions& options, std::string folder, Credentials credentials,
                         std::optional<StatePage> page, UniqueFd lifeline, UniqueFd capsule, UniqueFd channel)
    : folder_(std::move(folder)),
      credentials_(credentials),
      encoded_credentials_(EncodeCredentials(credentials)),
      timeout_(options.timeout),
      joined_(!lifeline),
      caches_permits_(options.cache_permits),
      observer_(options.observer),
      page_(std::move(page)),
      guard_(std::move(lifeline), std::move(channel)),
      live_(std::make_unique<Live>(std::make_shared<Stubs>(MakeGrpcChannel(folder_, options)),
                                   /*has_channel=*/!options.observer)),
      capsule_(std::move(capsule)) {}

absl::StatusOr<std::shared_ptr<SessionCore>> SessionCore::Open(const SessionOptions& options) {
  BERTH_RETURN_IF_ERROR(CheckNotForked());
  if (options.observer) return OpenObserver(options);
  BERTH_ASSIGN_OR_RETURN(Entry entry, Enter(options));
  BERTH_ASSIGN_OR_RETURN(JoinedChannel joined,
                         JoinSession(AttachPath(entry.folder, options.admin), entry.capsule, options.timeout));
  const Credentials credentials = {
      .session = entry.capsule.session, .channel = joined.channel, .secret = entry.capsule.secret};
  std::shared_ptr<SessionCore> core(
      new SessionCore(options, std::move(entry.folder), credentials, std::move(joined.page),
                      std::move(entry.lifeline), std::move(entry.capsule_fd), std::move(joined.socket)),
      &SessionCore::Retire);
  // The channel's thread ends before its core does.
  BERTH_ASSIGN_OR_RETURN(core->live_->channel,
                         Channel::Start(core->guard_.channel(), &core->live_->fences,
                                        {.on_lost = [raw = core.get()](const absl::Status& why) { raw->OnLost(why); },
                                         .on_resumed = [raw = core.get()] { raw->OnResumed(); },
                                         .on_return = [raw = core.get()] { raw->live_->pauses.OnReturn(); }}));
  return core;
}

absl::StatusOr<std::shared_ptr<SessionCore>> SessionCore::OpenObserver(const SessionOptions& options) {
  std::string folder = Absolute(options.folder.empty() ? DefaultFolder() : options.folder);
  BERTH_RETURN_IF_ERROR(CheckMayConnect(SocketPath(folder, options)));
  return std::shared_ptr<SessionCore>(new SessionCore(options, std::move(folder), Credentials(), std::nullopt,
                                                      UniqueFd(), UniqueFd(), UniqueFd()),
                                      &SessionCore::Retire);
}

void SessionCore::Retire(SessionCore* core) {
  const std::unique_ptr<Channel>& channel = core->live_->channel;
  Settler& settler = core->live_->settler;
  if (core->guard_.forked() || channel == nullptr) {
    delete core;
    return;
  }
  // The channel's thread sends; the debt only waits for it.
  if (!channel->sent()) settler.Add([&channel] { return channel->sent(); });
  std::shared_ptr<Stubs> stubs;
  {
    MutexLock lock(&core->mu_);
    stubs = core->live_->stubs;
  }
  core->KeepWhileConnecting(std::move(stubs));
  if (settler.Flush(kFlushPatience)) {
    delete core;
  } else {
    settler.FinishWith([core] { delete core; });
  }
}

SessionCore::~SessionCore() {
  if (guard_.forked()) {
    [[maybe_unused]] Live* const leaked = live_.release();
    return;
  }
  // The threads first: they use the rest.
  live_->lost.Cancel();
  live_->settler.Stop();
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

void SessionCore::OnResumed() {
  std::shared_ptr<grpc::Channel> channel;
  {
    MutexLock lock(&mu_);
    if (live_->stubs != nullptr) channel = live_->stubs->channel;
  }
  if (channel != nullptr) grpc::experimental::ChannelResetConnectionBackoff(channel.get());
}

absl::Status SessionCore::Check() const {
  BERTH_RETURN_IF_ERROR(guard_.Check());
  MutexLock lock(&mu_);
  return lost_;
}

absl::Status SessionCore::CheckActs() const {
  if (!observer_) return Check();
  return Refuse(Reason::kObserverOnlyLooks, "an observer has no session: ask on {socket}, or as an operator on {admin}",
                {{"socket", "berthd.sock"}, {"admin", "admin.sock"}});
}

absl::StatusOr<OpenRequest> SessionCore::Begin() {
  BERTH_RETURN_IF_ERROR(CheckActs());
  BERTH_ASSIGN_OR_RETURN(RequestBook::Tag tag, live_->book.Begin());
  return OpenRequest(this, tag);
}

absl::Status SessionCore::EnterCall() {
  BERTH_RETURN_IF_ERROR(guard_.Check());
  MutexLock lock(&mu_);
  calls_ += lost_.ok() ? 1 : 0;
  return lost_;
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
  if (stubs == nullptr || !stubs->connecting()) return;
  // Who waits at it is who reads its socket.
  live_->settler.Add([stubs = std::move(stubs)] {
    const absl::Time until = SteadyNow() + kFlushPatience;
    return stubs->channel->WaitForStateChange(GRPC_CHANNEL_CONNECTING, ToGrpc(until));
  });
}

void SessionCore::PrepareCall(const CallLimits& limits, grpc::ClientContext* context) const {
  // A daemon that restarts is waited for; one that is gone ends the session, and with it the call.
  context->set_wait_for_ready(true);
  context->set_deadline(ToGrpc(limits.deadline));
  context->AddMetadata(kCredentialsHeader, encoded_credentials_);
}

absl::Status SessionCore::NoAnswer() const {
  return absl::DeadlineExceededError(absl::StrCat("the daemon in ", folder_, " did not answer in time"));
}

absl::Status SessionCore::JudgeCall(const CallLimits& limits, const grpc::Status& answer) const {
  const absl::Status status = FromGrpc(answer);
  if (absl::IsDeadlineExceeded(status) && !GetErrorDetails(status).has_value()) return NoAnswer();
  if (!absl::IsCancelled(status)) return status;
  BERTH_RETURN_IF_ERROR(Check());
  // Where neither the caller nor the daemon's core says so, a server that went down ended the call.
  const bool asked_for = limits.cancellation != nullptr && limits.cancellation->cancelled();
  if (asked_for || GetErrorDetails(status).has_value()) return status;
  if (SteadyNow() >= limits.deadline) return NoAnswer();
  return absl::UnavailableError("the daemon ended the call");
}

std::optional<CallPause> SessionCore::PauseBeforeRetry(const CallLimits& limits, CallAttempts* attempts,
                                                       absl::Status* status) {
  if (!Check().ok()) return std::nullopt;
  return live_->pauses.Before(limits, SteadyNow(), attempts, status);
}

absl::Status SessionCore::CallOnce(const CallLimits& limits, const Attempt& attempt) {
  BERTH_RETURN_IF_ERROR(EnterCall());
  const absl::Cleanup leave = [this] { LeaveCall(); };
  grpc::ClientContext context;
  PrepareCall(limits, &context);
  const CallHooks hooks(this, limits, &context);
  return JudgeCall(limits, attempt(&context));
}

absl::Status SessionCore::Call(const CallLimits& limits, const Attempt& attempt) {
  for (CallAttempts attempts;;) {
    attempts.Sent(SteadyNow());
    absl::Status status = CallOnce(limits, attempt);
    const std::optional<CallPause> pause = PauseBeforeRetry(limits, &attempts, &status);
    if (!pause.has_value()) return status;
    live_->pauses.AwaitEnd(limits, *pause);
    if (over()) return status;
  }
}

void SessionCore::OweForget(uint64_t sequence) {
  if (guard_.forked()) return;
  live_->settler.Add([this, sequence] {
    v1::ForgetRequestRequest request;
    request.set_sequence(sequence);
    const absl::Status status =
        CallOnce({.deadline = SteadyNow() + kReturnPatience}, [&](grpc::ClientContext* context) {
          v1::ForgetRequestResponse response;
          return stubs().session->ForgetRequest(context, request, &response);
        });
    if (!IsReturned(status) && Check().ok()) return false;
    live_->book.Settle(sequence);
    return true;
  });
}

absl::Status SessionCore::GiveBack(const std::function<Attempt(const OpenRequest&)>& make_attempt,
                                   absl::Time deadline) {
  BERTH_RETURN_IF_ERROR(Check());
  OpenRequest request(this, live_->book.BeginReturn());
  const uint64_t sequence = request.sequence();
  Attempt attempt = make_attempt(request);
  // What gives back is repeated, never forgotten.
  request.core_ = nullptr;
  const absl::Status status = Call({.deadline = deadline}, attempt);
  if (IsReturned(status) || !Check().ok()) {
    live_->book.Settle(sequence);
    return status;
  }
  live_->settler.Add([this, sequence, attempt = std::move(attempt)] {
    const absl::Status later = CallOnce({.deadline = SteadyNow() + kReturnPatience}, attempt);
    if (!IsReturned(later) && Check().ok()) return false;
    live_->book.Settle(sequence);
    return true;
  });
  return status;
}

absl::StatusOr<std::string> SessionCore::Inherit() {
  BERTH_RETURN_IF_ERROR(CheckActs());
  if (joined_) {
    BERTH_ASSIGN_OR_RETURN(std::optional<InheritedFds> fds, InheritedFdsFromEnvironment());
    if (!fds.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat(kSessionVariable, " is no longer in the environment"));
    }
    return absl::StrCat(kSessionVariable, "=", FormatInheritedFds(*fds));
  }
  MutexLock lock(&mu_);
  BERTH_RETURN_IF_ERROR(ClearCloseOnExec(guard_.lifeline()));
  BERTH_RETURN_IF_ERROR(ClearCloseOnExec(capsule_.get()));
  guard_.KeepLifeline();
  return absl::StrCat(
      kSessionVariable, "=",
      FormatInheritedFds({.lifeline = guard_.lifeline(), .capsule = capsule_.get(), .keeper = ::getpid()}));
}

absl::Status SessionCore::End(absl::Duration max_wait) {
  BERTH_RETURN_IF_ERROR(CheckActs());
  const CallLimits limits = {.deadline = SteadyNow() + std::min(timeout_, max_wait)};
  const absl::Status status = Call(limits, [&](grpc::ClientContext* context) {
    v1::Session session;
    return stubs().session->EndSession(context, v1::EndSessionRequest(), &session);
  });
  // What the daemon says on the channel may be under way still: who has heard that the session is over finds no lease
  // that is not.
  if (status.ok()) channel().EndLeases();
  // The channel's end may overtake the answer; both say the same.
  return Check().ok() ? status : absl::OkStatus();
}

}  // namespace berth::internal
