#include "absl/strings/str_cat.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

struct Options {
  std::string pool;
  uint64_t cap = 0;
};

std::string ForPeople(const v1::ListPermitsResponse& answer, absl::Time now) {
  Table holders({{"POOL"},
                 {"UNITS", Table::Align::kRight},
                 {"DEPTH", Table::Align::kRight},
                 {"HELD", Table::Align::kRight},
                 {"WAITED", Table::Align::kRight},
                 {"SESSION"},
                 {"PROCESS"},
                 {"LABEL"}});
  for (const v1::Permit& permit : answer.permits()) {
    holders.AddRow({permit.pool(), absl::StrCat(permit.units()), absl::StrCat(permit.depth()),
                    FormatSince(permit.grant_time(), now), FormatDuration(permit.waited()),
                    absl::StrCat(permit.session()), FormatProcess(permit.process()), permit.label()});
  }
  Table waiters({{"POOL"},
                 {"POSITION", Table::Align::kRight},
                 {"PRIORITY", Table::Align::kRight},
                 {"UNITS", Table::Align::kRight},
                 {"WAITING", Table::Align::kRight},
                 {"SESSION"},
                 {"PROCESS"},
                 {"LABEL"}});
  for (const v1::Waiter& waiter : answer.waiters()) {
    waiters.AddRow({waiter.pool(), absl::StrCat(waiter.position()), absl::StrCat(waiter.priority()),
                    absl::StrCat(waiter.units()), FormatSince(waiter.wait_start_time(), now),
                    absl::StrCat(waiter.session()), FormatProcess(waiter.process()), waiter.label()});
  }
  const std::string held = holders.empty() ? "no permits are out\n" : holders.Format();
  return waiters.empty() ? held : absl::StrCat(held, "\n", waiters.Format());
}

absl::Status CheckPool(const Inspector& inspector, absl::string_view name) {
  BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse answer, inspector.ListPools());
  for (const v1::Pool& pool : answer.pools()) {
    if (pool.name() == name) return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("no permit pool ", name));
}

ExitStatus List(const Globals& globals, const Options& options) {
  return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::ListPermitsResponse answer, inspector.ListPermits(options.pool));
    // A pool that is not there has none either; who asks for one by name wants to know.
    if (!options.pool.empty()) BERTH_RETURN_IF_ERROR(CheckPool(inspector, options.pool));
    return Show(globals, answer, [&] { return ForPeople(answer, absl::Now()); });
  });
}

ExitStatus Set(const Globals& globals, const Options& options) {
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::Pool pool, inspector.SetPoolCap(options.pool, options.cap));
    return Show(globals, pool, [&] {
      return absl::StrCat("pool ", pool.name(), ": cap ", pool.cap(), ", out ", pool.out(), "\n");
    });
  });
}

}  // namespace

void AddPermits(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand("permits", "Show who holds permits and who waits for them");
  const auto options = std::make_shared<Options>();
  verb->add_option("--pool", options->pool, "Only of this pool");
  CLI::App* const set = verb->add_subcommand("set", "Set a pool's cap (operator); lowering it drains");
  set->add_option("POOL", options->pool, "The pool")->required();
  set->add_option("CAP", options->cap, "Units that may be out at once, at least 1")
      ->required()
      ->check(CheckCount);
  verb->callback([&globals, chosen, options, set] {
    const auto run = set->parsed() ? &Set : &List;
    *chosen = [&globals, options, run] { return run(globals, *options); };
  });
}

}  // namespace berth::cli
