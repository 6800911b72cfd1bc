#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "berth/v1/permit.pb.h"
#include "client/cli/format.h"
#include "client/cli/run/wait_cause.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// " on device any with 20 GiB declared, 30 GiB free"; empty if no device is requested.
std::string DescribeDevice(const v1::Waiter& waiter) {
  if (waiter.device().empty()) return "";
  std::vector<std::string> parts;
  const uint64_t declared = waiter.declared_bytes(), free = waiter.min_free_bytes();
  if (declared > 0) parts.push_back(absl::StrCat(FormatCount(declared), " declared"));
  if (free > 0) parts.push_back(absl::StrCat(FormatCount(free), " free"));
  return absl::StrCat(" on device ", waiter.device(), parts.empty() ? "" : " with ", absl::StrJoin(parts, ", "));
}

// Returns why there is no estimate.
std::string NoEstimate(const v1::WaitExplanation& wait) {
  switch (wait.cause()) {
    case v1::WaitExplanation::DEVICE:
    case v1::WaitExplanation::ELSEWHERE:
    case v1::WaitExplanation::OLD_READING:
    case v1::WaitExplanation::STOPPING:
    case v1::WaitExplanation::STOPPED:
      return "none: the request waits for more than permits";
    default:
      return wait.pool().has_mean_hold() ? "none: every permit out is held for longer than recent ones"
                                         : "none yet: no permit has been returned";
  }
}

std::string ForPeople(const v1::WaitExplanation& wait, absl::Time now) {
  const v1::Waiter& waiter = wait.waiter();
  std::string text = absl::StrCat(
      "waiter ", waiter.number(), ": ", FormatProcess(waiter.process()),
      waiter.stopped() ? ", stopped," : "", " requests ", waiter.units(),
      waiter.exclusive() ? " exclusively" : "", " of pool ", waiter.pool(), DescribeDevice(waiter), ", priority ",
      waiter.priority(), ", since ", FormatSince(waiter.wait_start_time(), now), "\n",
      waiter.gang().empty() ? "" : absl::StrCat("together: ", waiter.gang(), "\n"), "because: ", DescribeCause(wait),
      "\n", "place: ", waiter.position(), " of ", wait.pool().waiters(),
      wait.pool().stopped_waiters() == 0 ? "" : absl::StrCat(" (", wait.pool().stopped_waiters(), " stopped)"), ", ",
      wait.units_ahead(),
      " units requested before it", wait.passes() > 0 ? absl::StrCat(", passed ", wait.passes(), " times") : "", "\n");
  absl::StrAppend(&text, "estimate: ",
                  wait.has_estimate() ? absl::StrCat(wait.estimate().seconds() == 0
                                                         ? "less than 1s"
                                                         : absl::StrCat("about ", FormatDuration(wait.estimate())),
                                                     ", if permits are held as long as recent ones")
                                      : NoEstimate(wait),
                  "\n");
  Table holders({{"UNITS", Table::Align::kRight}, {"HELD", Table::Align::kRight}, {"PROCESS"}, {"LABEL"}});
  for (const v1::Permit& permit : wait.holders()) {
    holders.AddRow({absl::StrCat(permit.units(), permit.exclusive() ? " exclusive" : ""),
                    absl::StrCat(FormatSince(permit.grant_time(), now), permit.stopped() ? " stopped" : "",
                                 permit.overdue() ? " overdue" : "",
                                 permit.kept() ? " cached" : ""),
                    permit.id() == 0 ? "another tenant" : FormatProcess(permit.process()), permit.label()});
  }
  const int64_t more = static_cast<int64_t>(wait.pool().holders()) - wait.holders_size();
  if (holders.empty() && more <= 0) return absl::StrCat(text, "no permits of pool ", waiter.pool(), " are out\n");
  return absl::StrCat(text, holders.empty() ? "" : holders.Format(),
                      more <= 0 ? "" : absl::StrCat(holders.empty() ? "" : "and ", more, " more permits are out\n"));
}

}  // namespace

void AddExplain(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("explain", "Show why a waiter waits for permits");
  const auto waiter = std::make_shared<std::string>();
  verb.AddOption("WAITER", waiter.get(), "The waiter's number in `berth permits`")
      .Check(CheckIdIn("permits"))
      .Required();
  verb.Runs([&globals, waiter]() -> ExitStatus {
    const uint64_t number = *ParseId(*waiter);
    return Look(globals, [&](const Inspector& inspector, Sight) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::WaitExplanation wait, inspector.ExplainWait(number));
      return Show(globals, wait, [&] { return ForPeople(wait, absl::Now()); });
    });
  });
}

}  // namespace berth::cli
