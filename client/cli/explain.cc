#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::string Cause(const v1::WaitExplanation& wait) {
  const v1::Pool& pool = wait.pool();
  const uint64_t free = pool.out() < pool.cap() ? pool.cap() - pool.out() : 0;
  switch (wait.cause()) {
    case v1::WaitExplanation::KEPT_FOR_ANOTHER:
      return absl::StrCat(free, " free, kept for one that was passed too often");
    case v1::WaitExplanation::EXCLUSIVE_OUT:
      return "one permit is out that shuts all others out";
    case v1::WaitExplanation::OTHERS_OUT:
      return "it wants the pool for itself, and others have permits";
    case v1::WaitExplanation::TENANT_CAP:
      return absl::StrCat("its tenant has ", wait.tenant_out(), " of the ", pool.tenant_cap(),
                          " that a tenant may have");
    case v1::WaitExplanation::DEVICE:
      return absl::StrCat(
          "device ", wait.waiter().gang().empty() ? wait.waiter().device() : "(one of several)", " has not ",
          FormatCount(std::max(wait.waiter().declared_bytes(), wait.waiter().min_free_bytes())),
          " free, or does not serve");
    case v1::WaitExplanation::ELSEWHERE:
      return "another pool has not what it asks there; both are given together";
    case v1::WaitExplanation::ROOM:
      return "the bytes that it would reserve are not free";
    case v1::WaitExplanation::CLIENT_CAP:
      return "more are out than its own environment allows";
    default:
      return absl::StrCat(free, " of ", pool.cap(), " free");
  }
}

std::string ForPeople(const v1::WaitExplanation& wait, absl::Time now) {
  const v1::Waiter& waiter = wait.waiter();
  std::string text =
      absl::StrCat("waiter ", waiter.number(), ": ", FormatProcess(waiter.process()), " asks ",
                   waiter.units(), waiter.exclusive() ? " exclusively" : "", " of pool ", waiter.pool(),
                   ", priority ", waiter.priority(), ", since ", FormatSince(waiter.wait_start_time(), now),
                   "\n", waiter.gang().empty() ? "" : absl::StrCat("together: ", waiter.gang(), "\n"), "because: ", Cause(wait), "\n", "place: ", waiter.position(), " of ",
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
                    absl::StrCat(FormatSince(permit.grant_time(), now), permit.overdue() ? " overdue" : ""),
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
