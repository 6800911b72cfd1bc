#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "client/cli/wait_cause.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// " on device any with 20 GiB declared, 30 GiB free"; nothing where none is asked.
std::string DescribeDevice(const v1::Waiter& waiter) {
  if (waiter.device().empty()) return "";
  std::vector<std::string> parts;
  const uint64_t declared = waiter.declared_bytes(), free = waiter.min_free_bytes();
  if (declared > 0) parts.push_back(absl::StrCat(FormatCount(declared), " declared"));
  if (free > 0) parts.push_back(absl::StrCat(FormatCount(free), " free"));
  return absl::StrCat(" on device ", waiter.device(), parts.empty() ? "" : " with ", absl::StrJoin(parts, ", "));
}

std::string ForPeople(const v1::WaitExplanation& wait, absl::Time now) {
  const v1::Waiter& waiter = wait.waiter();
  std::string text =
      absl::StrCat("waiter ", waiter.number(), ": ", FormatProcess(waiter.process()), " asks ",
                   waiter.units(), waiter.exclusive() ? " exclusively" : "", " of pool ", waiter.pool(),
                   DescribeDevice(waiter), ", priority ", waiter.priority(), ", since ",
                   FormatSince(waiter.wait_start_time(), now),
                   "\n", waiter.gang().empty() ? "" : absl::StrCat("together: ", waiter.gang(), "\n"),
                   "because: ", DescribeCause(wait), "\n",
                   wait.lacking().empty() ? "" : absl::StrCat("devices: ", wait.lacking(), "\n"),
                   "place: ", waiter.position(), " of ",
                   wait.pool().waiters(), ", ", wait.units_ahead(), " units asked before it",
                   wait.passes() > 0 ? absl::StrCat(", passed ", wait.passes(), " times") : "", "\n");
  absl::StrAppend(&text, "estimate: ",
                  wait.has_estimate() ? absl::StrCat("about ", FormatDuration(wait.estimate()),
                                                     ", if permits are held as long as the last ones were")
                                      : "none yet: no permit has come back",
                  "\n");
  Table holders({{"UNITS", Table::Align::kRight}, {"HELD", Table::Align::kRight}, {"PROCESS"}, {"LABEL"}});
  for (const v1::Permit& permit : wait.holders()) {
    holders.AddRow({absl::StrCat(permit.units(), permit.exclusive() ? " exclusive" : ""),
                    absl::StrCat(FormatSince(permit.grant_time(), now), permit.overdue() ? " overdue" : "",
                                 permit.kept() ? " kept" : ""),
                    permit.id() == 0 ? "another tenant" : FormatProcess(permit.process()), permit.label()});
  }
  const int64_t more = static_cast<int64_t>(wait.pool().holders()) - wait.holders_size();
  return absl::StrCat(text, holders.empty() ? "no permits are out\n" : holders.Format(),
                      more > 0 ? absl::StrCat("and ", more, " more\n") : "");
}

}  // namespace

void AddExplain(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand("explain", "Say why somebody waits for permits");
  const auto waiter = std::make_shared<std::string>();
  verb->add_option("WAITER", *waiter, "The waiter's number, as `berth permits` shows it")->required();
  verb->callback([&globals, chosen, waiter] {
    *chosen = [&globals, waiter]() -> ExitStatus {
      const absl::StatusOr<uint64_t> number = ParseId(*waiter);
      if (!number.ok()) {
        Report(number.status());
        return {.code = kUsage};
      }
      return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(const v1::WaitExplanation wait, inspector.ExplainWait(*number));
        return Show(globals, wait, [&] { return ForPeople(wait, absl::Now()); });
      });
    };
  });
}

}  // namespace berth::cli
