#include "client/cli/permit_wish.h"

#include <stdio.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/format.h"
#include "client/cli/verbs.h"
#include "client/cli/wait_notice.h"
#include "common/bytes.h"
#include "common/error.h"
#include "common/label.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

constexpr char kAnyDevice[] = "any";

// Which device the permit is to name; empty for none.
std::string DeviceOf(const PermitWish& wish) {
  if (!wish.device.empty()) return wish.device;
  return wish.gpus > 0 || !wish.mem.empty() ? kAnyDevice : "";
}

}  // namespace

void AddPermitOptions(CLI::App* verb, PermitWish* wish) {
  verb->add_option("--pool", wish->pool, "The pool (default: gpu-tests)");
  verb->add_option("--permits", wish->units, "Units to take (default: 1)")->check(CheckCount);
  verb->add_flag("--exclusive", wish->exclusive,
                 "Only while nobody else has a permit, and nobody else gets one");
  verb->add_option("--priority", wish->priority, "From -10 to 10, higher goes first (default: 0)");
  verb->add_option(
          "--gpus", wish->gpus,
          "Name so many devices for the command, in BERTH_DEVICE and CUDA_VISIBLE_DEVICES; only 1 for now")
      ->check(CheckCount);
  verb->add_option("--device", wish->device,
                   "Which: any (the default), best, or a UUID; --gpus 1 is implied");
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
  if (wish.gpus > 1)
    return absl::InvalidArgumentError(absl::StrCat("--gpus ", wish.gpus, ": only 1 for now"));
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

absl::StatusOr<Permit> AcquireWish(const std::shared_ptr<Session>& session, const PermitWish& wish,
                                   absl::string_view label, Cancellation* cancellation) {
  const std::string key = absl::StrCat("run-", ::getpid(), "-", absl::Hex(RandomId()));
  const absl::Duration max_wait = MaxWait(wish);
  std::optional<WaitNotice> notice;
  if (!wish.quiet && max_wait > WaitNotice::kPatience) notice.emplace(session, wish.pool, key);
  return Permit::Acquire(session, {.pool = wish.pool,
                                   .units = wish.units,
                                   .label = std::string(label),
                                   .priority = wish.priority,
                                   .max_wait = max_wait,
                                   .holder_key = key,
                                   .exclusive = wish.exclusive,
                                   .device = DeviceOf(wish),
                                   .declared = wish.mem.empty() ? Bytes() : *ParseBytes(wish.mem),
                                   .independent = wish.independent,
                                   // Beside an adoptable permit another one would make it a matter of luck
                                   // which is adopted.
                                   .adoptable = !(wish.independent && session->joined()),
                                   .on_event = wish.on_event,
                                   .cancellation = cancellation});
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

absl::StatusOr<std::vector<std::string>> EnvironmentOf(Session& session, const Permit& permit) {
  BERTH_ASSIGN_OR_RETURN(std::string inherited, session.Inherit());
  std::vector<std::string> entries = permit.environment();
  entries.push_back(std::move(inherited));
  entries.push_back(absl::StrCat("BERTH_FOLDER=", session.folder()));
  if (!permit.device_uuid().empty()) entries.push_back(absl::StrCat("BERTH_DEVICE=", permit.device_uuid()));
  return entries;
}

}  // namespace berth::cli
