#include "client/cli/permit_wish.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/verbs.h"
#include "client/cli/wait_notice.h"
#include "client/gang.h"
#include "common/bytes.h"
#include "common/error.h"
#include "common/label.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

constexpr char kAnyDevice[] = "any";
// What is no UUID.
constexpr absl::string_view kPicks[] = {kAnyDevice, "best", "highest-score", "round-robin"};
// As many as a node has at most, and a gang members.
constexpr uint64_t kMaxGpus = 64;

// One member for each device that is wished for; one without a device where none is.
std::vector<GangMember> MembersOf(const PermitWish& wish) {
  const Bytes declared = wish.mem.empty() ? Bytes() : *ParseBytes(wish.mem);
  std::vector<GangMember> members;
  for (const auto& [uuid, units] : wish.placed) {
    members.push_back({.pool = wish.pool, .units = units, .device = uuid, .declared = declared});
  }
  if (!members.empty()) return members;
  std::string device = wish.device;
  if (device.empty() && (wish.gpus > 0 || !wish.mem.empty())) device = kAnyDevice;
  const bool asks = !wish.min_capability.empty() || !wish.island_of.empty();
  if (device.empty() && asks) device = kAnyDevice;
  const uint32_t capability = wish.min_capability.empty() ? 0 : *ParseCapability(wish.min_capability);
  members.resize(std::max<uint64_t>(wish.gpus, 1), {.pool = wish.pool,
                                                    .units = wish.units,
                                                    .device = device,
                                                    .declared = declared,
                                                    .min_capability = capability,
                                                    .island_of = wish.island_of});
  return members;
}

}  // namespace

void AddPermitOptions(CLI::App* verb, PermitWish* wish) {
  verb->add_option("--pool", wish->pool, "The pool (default: gpu-tests)");
  verb->add_option("--permits", wish->units, "Units to take (default: 1)")->check(CheckCount);
  verb->add_flag("--exclusive", wish->exclusive,
                 "Only while nobody else has a permit, and nobody else gets one");
  verb->add_option("--priority", wish->priority, "From -10 to 10, higher goes first (default: 0)");
  verb->add_option("--gpus", wish->gpus,
                   "Name so many devices for the command, in BERTH_DEVICE and CUDA_VISIBLE_DEVICES: all of "
                   "them or none yet; "
                   "--permits and --mem are of each")
      ->check(CheckCount);
  verb->add_option(
      "--device", wish->device,
      "Which: any (the default: the least loaded), best (with the most free bytes), highest-score, "
      "round-robin, or a UUID; --gpus 1 is implied");
  verb->add_option("--min-capability", wish->min_capability,
                   "The least compute capability of its devices, e.g. 9.0; --gpus 1 is implied");
  verb->add_option("--island-of", wish->island_of,
                   "Devices in the NVLink island of the one of this UUID; --gpus 1 is implied");
  verb->add_option(
      "--mem", wish->mem,
      "Bytes that the command takes on its device, e.g. 20GiB: waits until they are free and keeps them "
      "for it; --gpus 1 is implied");
  auto* const timeout =
      verb->add_option("--timeout", wish->timeout, "Wait at most so long, e.g. 90, 5m (default: for ever)");
  verb->add_flag("--no-wait", wish->no_wait, "Do not wait at all")->excludes(timeout);
  verb->add_option("--label", wish->label, "What others see (default: the command's name)");
  verb->add_flag("--independent", wish->independent,
                 "Inside another `berth run`: take permits besides its own");
  verb->add_flag("--quiet", wish->quiet, "Do not say after 2 s why it waits");
}

absl::Status Check(const PermitWish& wish) {
  if (!wish.timeout.empty()) BERTH_RETURN_IF_ERROR(ParseWait(wish.timeout).status());
  if (!wish.mem.empty()) BERTH_RETURN_IF_ERROR(ParseBytes(wish.mem).status());
  if (wish.gpus > kMaxGpus) {
    return absl::InvalidArgumentError(absl::StrCat("--gpus ", wish.gpus, ": the most is ", kMaxGpus));
  }
  const bool named = !wish.device.empty() && !absl::c_linear_search(kPicks, wish.device);
  if (wish.gpus > 1 && named) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gpus ", wish.gpus, " are any or best, not all ", wish.device));
  }
  if (!wish.min_capability.empty()) BERTH_RETURN_IF_ERROR(ParseCapability(wish.min_capability).status());
  return absl::OkStatus();
}

absl::Duration MaxWait(const PermitWish& wish) {
  if (wish.no_wait) return absl::ZeroDuration();
  return wish.timeout.empty() ? absl::InfiniteDuration() : *ParseWait(wish.timeout);
}

std::string LabelOf(const PermitWish& wish, absl::string_view program) {
  if (!wish.label.empty()) return wish.label;
  return ToLabel(program.substr(program.rfind('/') + 1));
}

absl::StatusOr<HeldPermits> AcquireWish(const std::shared_ptr<Session>& session, const PermitWish& wish,
                                        absl::string_view label, Cancellation* cancellation) {
  const std::string key = absl::StrCat("run-", ::getpid(), "-", absl::Hex(RandomId()));
  const absl::Duration max_wait = MaxWait(wish);
  std::optional<WaitNotice> notice;
  if (!wish.quiet && max_wait > WaitNotice::kPatience) notice.emplace(session, wish.pool, key);
  const std::vector<GangMember> members = MembersOf(wish);
  // Beside an adoptable permit another one would make it a matter of luck which is adopted.
  const bool adoptable = !(wish.independent && session->joined());
  if (members.size() > 1) {
    const GangOptions options = {.members = members,
                                 .label = std::string(label),
                                 .priority = wish.priority,
                                 .max_wait = max_wait,
                                 .holder_key = key,
                                 .exclusive = wish.exclusive,
                                 .independent = wish.independent,
                                 .adoptable = adoptable,
                                 .on_event = wish.on_event,
                                 .cancellation = cancellation};
    BERTH_ASSIGN_OR_RETURN(Gang gang, Gang::Acquire(session, options));
    return HeldPermits(std::move(gang.permits()), gang.environment());
  }
  const PermitOptions options = {.pool = wish.pool,
                                 .units = members[0].units,
                                 .label = std::string(label),
                                 .priority = wish.priority,
                                 .max_wait = max_wait,
                                 .holder_key = key,
                                 .exclusive = wish.exclusive,
                                 .device = members[0].device,
                                 .declared = members[0].declared,
                                 .min_capability = members[0].min_capability,
                                 .island_of = members[0].island_of,
                                 .independent = wish.independent,
                                 .adoptable = adoptable,
                                 .on_event = wish.on_event,
                                 .cancellation = cancellation};
  BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session, options));
  std::vector<std::string> environment = permit.environment();
  std::vector<Permit> permits;
  permits.push_back(std::move(permit));
  return HeldPermits(std::move(permits), std::move(environment));
}

ExitStatus FailedToAcquire(const absl::Status& status, const PermitWish& wish) {
  // A wait of no time at all ends with the one or the other refusal; the code says which option asked for it.
  if (IsRefusal(status, Reason::kNoPermit) || IsRefusal(status, Reason::kWaitTimedOut)) {
    ::fprintf(stderr, "berth: %s\n", std::string(status.message()).c_str());
    return {.code = wish.no_wait ? kNotGranted : kTimedOut};
  }
  const ExitStatus end = Report(status);
  return end.code == kFailed ? ExitStatus{.code = kRunFailed} : end;
}

absl::StatusOr<std::vector<std::string>> EnvironmentOf(Session& session, const HeldPermits& permits) {
  BERTH_ASSIGN_OR_RETURN(std::string inherited, session.Inherit());
  std::vector<std::string> entries = permits.environment();
  entries.push_back(std::move(inherited));
  entries.push_back(absl::StrCat("BERTH_FOLDER=", session.folder()));
  if (const std::string devices = permits.Devices(); !devices.empty()) {
    entries.push_back(absl::StrCat("BERTH_DEVICE=", devices));
  }
  return entries;
}

std::string HeldPermits::Devices() const {
  std::vector<std::string> uuids;
  for (const Permit& permit : permits_) {
    if (!permit.device_uuid().empty()) uuids.push_back(permit.device_uuid());
  }
  return absl::StrJoin(uuids, ",");
}

void HeldPermits::Release() {
  for (Permit& permit : permits_) permit.Release().IgnoreError();
}

void HeldPermits::Leave() {
  for (Permit& permit : permits_) permit.Leave();
}

}  // namespace berth::cli
