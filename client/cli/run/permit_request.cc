#include "client/cli/run/permit_request.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/gang.h>
#include <berth/visible_devices.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cli/exit_status.h"
#include "client/cli/format.h"
#include "client/cli/run/local_rank.h"
#include "client/cli/run/permit_notice.h"
#include "client/cli/run/wait_notice.h"
#include "client/cli/verbs.h"
#include "client/sdk/permits/permit_watch.h"
#include "client/sdk/transport/session_core.h"
#include "client/sdk/transport/side_channel.h"
#include "common/label.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "common/time_span.h"

namespace berth::cli {
namespace {

constexpr char kAnyDevice[] = "any";
constexpr char kCudaVariable[] = "CUDA_VISIBLE_DEVICES";
// Device names that are no UUID.
constexpr absl::string_view kPicks[] = {kAnyDevice, "best", "highest-score", "round-robin"};
// The maximum number of devices of a node and of members of a gang.
constexpr int kMaxGpus = 64;

// "1 device", "2 devices".
std::string Counted(uint64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// Whether the request is for one device, whichever it is: `--gpus 1`, `--device any` or `--mem`.
bool IsForAnyDevice(const PermitRequest& request) {
  if (!request.placed.empty() || request.gpus > 1) return false;
  if (request.device.empty()) return request.gpus == 1 || !request.mem.empty();
  return request.device == kAnyDevice;
}

// If the request is for any one device of the lease that this process is in, names the device of the process's rank.
// Returns whether the daemon chooses the device of a rank without a number.
bool ChooseByRank(const Session& session, PermitRequest* request) {
  const bool plain = IsForAnyDevice(*request) && request->min_capability.empty() && request->island_of.empty();
  if (!session.joined() || request->independent || !plain || !request->among.empty()) return false;
  const char* const devices = ::getenv(kDeviceVariable);
  // A launcher that sets the rank's device itself has chosen: the value differs both from Berth's and from the original
  // one.
  const char* const visible = ::getenv(kCudaVariable);
  const char* const outer = ::getenv(kVisibleVariable);
  const bool is_launchers = visible != nullptr && (devices == nullptr || absl::string_view(visible) != devices) &&
                            (outer == nullptr || absl::string_view(visible) != outer);
  std::optional<RankedDevice> mine;
  if (devices != nullptr && !is_launchers) mine = DeviceOfRank(devices, ::getenv);
  if (!mine.has_value()) return !HasRanksDevice(::getenv);
  request->device = mine->uuid;
  if (!mine->shares || request->quiet) return false;
  Complain(absl::StrCat(mine->variable, " ", mine->rank, ": shares device ", mine->uuid, " with rank ",
                        mine->rank % mine->devices, ": the lease has ", Counted(mine->devices, "device")));
  return false;
}

// Reports that the daemon gave this rank a device that other ranks have, too.
void ComplainOfSharedDevice(const Permit& permit) {
  const uint64_t sharers = permit.device_sharers().value_or(0);
  if (sharers == 0) return;
  const char* const devices = ::getenv(kDeviceVariable);
  const uint64_t count = devices == nullptr ? 0 : 1 + absl::c_count(absl::string_view(devices), ',');
  Complain(absl::StrCat("shares device ", permit.device_uuid(), " with ", Counted(sharers, "other run"),
                        " of the lease", count == 0 ? "" : absl::StrCat(", which has ", Counted(count, "device"))));
}

// Returns one member for each requested device; one without a device if none is requested.
std::vector<GangMember> MembersOf(const PermitRequest& request) {
  const Bytes declared = request.mem.empty() ? Bytes() : *ParseBytes(request.mem);
  std::vector<GangMember> members;
  for (const auto& [uuid, units] : request.placed) {
    members.push_back({.pool = request.pool,
                       .units = units,
                       .device = uuid,
                       .declared = declared,
                       .wait_for_device = request.wait_for_device});
  }
  if (!members.empty()) return members;
  std::string device = request.device;
  if (device.empty() && (request.gpus > 0 || !request.mem.empty())) device = kAnyDevice;
  const bool asks = !request.min_capability.empty() || !request.island_of.empty() || !request.among.empty();
  if (device.empty() && asks) device = kAnyDevice;
  const std::vector<std::string> among =
      absl::StrSplit(absl::StrJoin(request.among, ","), ',', absl::SkipEmpty());
  const uint32_t capability = request.min_capability.empty() ? 0 : *ParseCapability(request.min_capability);
  members.resize(std::max<uint64_t>(request.gpus, 1), {.pool = request.pool,
                                                       .units = request.units,
                                                       .device = device,
                                                       .declared = declared,
                                                       .min_capability = capability,
                                                       .island_of = request.island_of,
                                                       .among = among,
                                                       .wait_for_device = request.wait_for_device});
  return members;
}

// The signals that `berth run` forwards, by name.
const std::map<std::string, int>& RevokeSignals() {
  static const auto* const signals =
      new std::map<std::string, int>{{"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT},
                                     {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};
  return *signals;
}

// Returns the error in an option's value with the option's name.
absl::Status Named(absl::string_view option, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(option, ": ", status.message()));
}

// Checks that ordinals can name the devices of these UUIDs. An ordinal in CUDA_VISIBLE_DEVICES names a whole GPU, and
// CUDA would choose among its instances.
absl::Status CheckOrdinals(absl::string_view uuids) {
  for (const absl::string_view uuid : absl::StrSplit(uuids, ',')) {
    if (!absl::StartsWith(uuid, "MIG-")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--ordinals: device ", uuid,
                     " is a MIG instance, which CUDA_VISIBLE_DEVICES names by UUID only: run without --ordinals"));
  }
  return absl::OkStatus();
}

// Returns 0 for the empty name.
int SignalOf(const std::string& name) {
  const auto found = RevokeSignals().find(name);
  return found == RevokeSignals().end() ? 0 : found->second;
}

}  // namespace

void AddPermitOptions(Command verb, PermitRequest* request) {
  verb.AddOption("--pool", &request->pool, "The pool (default: gpu-tests)");
  verb.AddOption("--permits", &request->units, "Units of the pool (default: 1)").AtLeast(1);
  verb.AddFlag("--exclusive", &request->exclusive,
               "Acquire only while no other permit of the pool is in use, and exclude other permits until the release");
  verb.AddOption("--priority", &request->priority, "From -10 to 10; higher priorities are served first (default: 0)")
      .Within(-10, 10);
  verb.AddOption("--gpus", &request->gpus,
                 "Acquire this many devices, all or none, and name them in BERTH_DEVICE and CUDA_VISIBLE_DEVICES; "
                 "--permits and --mem apply to each (default: 0)")
      .Within(1, kMaxGpus);
  verb.AddOption(
      "--device", &request->device,
      "any (default: the least loaded), best (the most free bytes), highest-score, round-robin, or an ordinal, a UUID "
      "or a unique prefix of one; implies --gpus 1");
  verb.AddOption("--devices", &request->among,
                 "Choose among these devices only, e.g. 0,1 (named as in --device); CUDA_VISIBLE_DEVICES also limits "
                 "the choice; implies --gpus 1")
      .List();
  verb.AddFlag("--wait-for-device", &request->wait_for_device,
               "If every device that --device, --devices and the like allow is out of service, wait for one of them "
               "instead of failing");
  verb.AddFlag("--ordinals", &request->ordinals,
               "Name the devices in the command's environment by ordinal, in PCI order, instead of by UUID");
  verb.AddOption("--min-capability", &request->min_capability,
                 "The lowest acceptable compute capability, e.g. 9.0; implies --gpus 1");
  verb.AddOption("--island-of", &request->island_of,
                 "Only devices in this device's NVLink island (named as in --device); implies --gpus 1");
  verb.AddOption(
      "--mem", &request->mem,
      "Bytes that the command allocates on its device, e.g. 20GiB: wait until they are free, and reserve them; "
      "implies --gpus 1");
  const Option timeout =
      verb.AddOption("--timeout", &request->timeout, "The longest wait, e.g. 90 (seconds) or 5m (default: no limit)");
  verb.AddFlag("--no-wait", &request->no_wait, "Do not wait").Excludes(timeout);
  verb.AddOption("--label", &request->label, "The name that lists show (default: the command's name)").MayBeEmpty();
  verb.AddFlag("--independent", &request->independent,
               "Inside another `berth run`: acquire further permits instead of sharing its permits");
  verb.AddFlag("--quiet", &request->quiet, "Do not report why the command waits (otherwise reported after 2 s)");
}

// Not checked by the parser: these refusals are in the report of a command that did not run.
absl::Status Check(const PermitRequest& request) {
  if (!request.timeout.empty()) BERTH_RETURN_IF_ERROR(Named("--timeout", ParseTimeSpan(request.timeout).status()));
  if (!request.mem.empty()) BERTH_RETURN_IF_ERROR(Named("--mem", ParseBytes(request.mem).status()));
  const bool named = !request.device.empty() && !absl::c_linear_search(kPicks, request.device);
  if (request.gpus > 1 && named) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--gpus ", request.gpus, " needs a choice such as any or best, not the one device ", request.device));
  }
  if (!request.min_capability.empty()) {
    BERTH_RETURN_IF_ERROR(Named("--min-capability", ParseCapability(request.min_capability).status()));
  }
  return absl::OkStatus();
}

absl::Duration MaxWait(const PermitRequest& request) {
  if (request.no_wait) return absl::ZeroDuration();
  return request.timeout.empty() ? absl::InfiniteDuration() : *ParseTimeSpan(request.timeout);
}

std::string LabelOf(const PermitRequest& request, absl::string_view program) {
  if (!request.label.empty()) return request.label;
  return ToLabel(program.substr(program.rfind('/') + 1));
}

absl::StatusOr<HeldPermits> AcquirePermits(const std::shared_ptr<Session>& session, const PermitRequest& requested,
                                           absl::string_view label, Cancellation* cancellation) {
  // The session has been opened.
  ComplainOfAnswer();
  PermitRequest request = requested;
  const bool is_rank = ChooseByRank(*session, &request);
  const std::string key = absl::StrCat("run-", ::getpid(), "-", absl::Hex(RandomId()));
  const absl::Duration max_wait = MaxWait(request);
  std::optional<WaitNotice> notice;
  if (!request.quiet && max_wait > WaitNotice::kPatience) notice.emplace(session, request.pool, key);
  const std::vector<GangMember> members = MembersOf(request);
  // Next to an existing adoptable permit, a second one would make it undefined which permit is adopted.
  const bool adoptable = !(request.independent && session->joined());
  if (members.size() > 1) {
    const GangOptions options = {.members = members,
                                 .label = std::string(label),
                                 .priority = request.priority,
                                 .max_wait = max_wait,
                                 .holder_key = key,
                                 .exclusive = request.exclusive,
                                 .independent = request.independent,
                                 .adoptable = adoptable,
                                 .on_event = request.on_event,
                                 .cancellation = cancellation};
    BERTH_ASSIGN_OR_RETURN(Gang gang, Gang::Acquire(session, options));
    ComplainOfAnswer();
    return HeldPermits(session, std::move(gang.permits()), gang.environment());
  }
  const PermitOptions options = {.pool = request.pool,
                                 .units = members[0].units,
                                 .label = std::string(label),
                                 .priority = request.priority,
                                 .max_wait = max_wait,
                                 .holder_key = key,
                                 .exclusive = request.exclusive,
                                 .device = members[0].device,
                                 .declared = members[0].declared,
                                 .min_capability = members[0].min_capability,
                                 .island_of = members[0].island_of,
                                 .among = members[0].among,
                                 .wait_for_device = members[0].wait_for_device,
                                 .independent = request.independent,
                                 .adoptable = adoptable,
                                 .on_event = request.on_event,
                                 .cancellation = cancellation};
  BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session, options));
  ComplainOfAnswer();
  if (is_rank && !request.quiet) ComplainOfSharedDevice(permit);
  std::vector<std::string> environment = permit.environment();
  std::vector<Permit> permits;
  permits.push_back(std::move(permit));
  return HeldPermits(session, std::move(permits), std::move(environment));
}

ExitStatus FailedToAcquire(const absl::Status& status, const PermitRequest& request) {
  // A zero wait can end with either refusal; the exit code depends on the option that requested it.
  if (IsRefusal(status, Reason::kNoPermit) || IsRefusal(status, Reason::kWaitTimedOut)) {
    Complain(status.message());
    if (request.no_wait) return {.code = kNotGranted, .not_run = "not-free"};
    return {.code = kTimedOut, .not_run = "timed-out"};
  }
  ExitStatus end = Report(status);
  if (end.code == kFailed) end.code = kRunFailed;
  return end;
}

absl::StatusOr<std::vector<std::string>> EnvironmentOf(Session& session, const HeldPermits& permits,
                                                       const PermitRequest& request) {
  BERTH_ASSIGN_OR_RETURN(std::string inherited, session.Inherit());
  std::vector<std::string> entries = permits.environment();
  entries.push_back(std::move(inherited));
  entries.push_back(absl::StrCat("BERTH_FOLDER=", session.folder()));
  const std::string devices = permits.Devices(request.ordinals);
  if (devices.empty()) return entries;
  if (request.ordinals) BERTH_RETURN_IF_ERROR(CheckOrdinals(permits.Devices()));
  entries.push_back(absl::StrCat(kDeviceVariable, "=", devices));
  for (std::string& entry : entries) {
    if (absl::StartsWith(entry, absl::StrCat(kCudaVariable, "="))) entry = absl::StrCat(kCudaVariable, "=", devices);
  }
  if (const std::optional<std::string> bound = VisibleDevices(); bound.has_value()) {
    entries.push_back(absl::StrCat(kVisibleVariable, "=", *bound));
  }
  // Also empty, in place of an enclosing run's.
  const std::string mark = RankMark(permits.nested(), ::getenv);
  if (!mark.empty() || ::getenv(kRankVariable) != nullptr) entries.push_back(absl::StrCat(kRankVariable, "=", mark));
  return entries;
}

std::string HeldPermits::Devices(bool ordinals) const {
  std::map<uint32_t, std::string> devices;
  for (const Permit& permit : permits_) {
    if (const auto ordinal = permit.device_ordinal()) {
      devices.emplace(*ordinal, ordinals ? absl::StrCat(*ordinal) : permit.device_uuid());
    }
  }
  return absl::StrJoin(devices, ",", [](std::string* out, const auto& device) { absl::StrAppend(out, device.second); });
}

bool HeldPermits::nested() const {
  return absl::c_any_of(permits_, [](const Permit& permit) { return permit.device_sharers().has_value(); });
}

std::optional<EndNotice> HeldPermits::end() const {
  session_->core()->channel().TakeIn();
  for (const Permit& permit : permits_) {
    if (std::optional<EndNotice> ended = permit.end()) return ended;
  }
  return std::nullopt;
}

std::optional<EndNotice> HeldPermits::AwaitEnd() const {
  const std::shared_ptr<internal::SessionCore>& core = session_->core();
  // Any answer follows the notices that waited for this process, also if the channel returned a moment ago.
  const absl::Duration patience = core->ReturnDeadline() - SteadyNow();
  if (core->channel().AwaitReturn(patience) == internal::SideChannel::Return::kPresent) core->PauseWaits();
  return end();
}

std::optional<EndNotice> HeldPermits::Release() {
  std::optional<EndNotice> first;
  for (Permit& permit : permits_) {
    const absl::Status released = permit.Release();
    std::optional<EndNotice> ended = internal::EndOf(released);
    // A daemon that does not know the session reports this to the first caller, which may be this release.
    if (!ended.has_value() && absl::IsUnauthenticated(released)) ended = {.reason = EndReason::kNotResumed};
    if (!first.has_value()) first = ended;
  }
  return first;
}

void HeldPermits::Leave() {
  for (Permit& permit : permits_) permit.Leave();
}

// ---- permit_notice.h -----------------------------------------------------------------------------------------

Option AddOnRevoke(Command verb, const std::string& whom, std::string* name) {
  std::vector<std::string> signals;
  for (const auto& [signal, number] : RevokeSignals()) signals.push_back(signal);
  return verb
      .AddOption("--on-revoke", name,
                 absl::StrCat("Send ", whom,
                              " this signal when its permit ends before its release: HUP, INT, QUIT, TERM, USR1 or "
                              "USR2"))
      .OneOf(std::move(signals));
}

PermitNotice::PermitNotice(const std::string& on_revoke, std::function<void(int)> send)
    : signal_(SignalOf(on_revoke)), send_(std::move(send)) {}

void PermitNotice::Take(const PermitEvent& event) {
  MutexLock lock(&mu_);
  if (event.what == PermitEvent::kOverdue) {
    Complain("the permit is overdue: held longer than its pool's hold_warning");
    return;
  }
  if (std::exchange(ended_, true)) return;
  // The signal does not depend on the text: it goes first, and Complain() does not wait.
  if (signal_ != 0 && send_) send_(signal_);
  Complain(absl::StrCat("the permit has ended: ", Describe(event.end), "; ",
                        FreesUnits(event.end.reason) ? "other jobs may use its units now"
                                                     : "its units return when the job's processes have ended"));
}

void PermitNotice::StopSending() {
  MutexLock lock(&mu_);
  send_ = nullptr;
}

}  // namespace berth::cli
