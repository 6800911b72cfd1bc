#include <algorithm>
#include <string>
#include <utility>

#include <berth/bytes.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/device_name.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Options as given on the command line; empty if not given.
struct BudgetOptions {
  std::string device;
  std::string tenant;
  std::string session;
  std::string limit;
};

template <typename Budgets>
std::string ForPeople(const Budgets& budgets) {
  Table table({{"LAYER"},
               {"DEVICE", Table::Align::kRight},
               {"TENANT"},
               {"SESSION"},
               {"LIMIT", Table::Align::kRight},
               {"OUTSTANDING", Table::Align::kRight},
               {"RESERVED", Table::Align::kRight},
               {"WARM", Table::Align::kRight},
               {"PEAK", Table::Align::kRight},
               {"ALLOCATIONS", Table::Align::kRight},
               {"REFUSED", Table::Align::kRight},
               {"STUCK", Table::Align::kRight}});
  for (const v1::Budget& budget : budgets) {
    table.AddRow({v1::Budget::Layer_Name(budget.layer()), absl::StrCat(budget.device()),
                  budget.has_tenant() ? FormatTenant(budget.tenant()) : "",
                  budget.session() == 0 ? "" : absl::StrCat(budget.session()),
                  budget.has_limit_bytes() ? FormatCount(budget.limit_bytes()) : "none",
                  FormatCount(budget.bytes().outstanding()), FormatCount(budget.bytes().reserved()),
                  FormatCount(budget.bytes().warm()), FormatCount(budget.peak_bytes()),
                  absl::StrCat(budget.allocations_total()), absl::StrCat(budget.refused_total()),
                  FormatCount(budget.stuck_bytes())});
  }
  return table.Format();
}

ExitStatus List(const Globals& globals) {
  return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(v1::ListBudgetsResponse budgets, inspector.ListBudgets());
    std::stable_sort(budgets.mutable_budgets()->begin(), budgets.mutable_budgets()->end(),
                     [](const v1::Budget& a, const v1::Budget& b) {
                       return std::pair(a.device(), a.layer()) < std::pair(b.device(), b.layer());
                     });
    return Show(globals, budgets, [&] { return ForPeople(budgets.budgets()) + LacksOthers(sight); });
  });
}

v1::SetBudgetRequest MakeRequest(const BudgetOptions& options) {
  v1::SetBudgetRequest request;
  if (options.limit != "default") request.set_limit_bytes(ParseBytes(options.limit)->count());
  if (!options.tenant.empty()) *request.mutable_tenant() = *ParseTenant(options.tenant);
  if (!options.session.empty()) request.set_session(*ParseId(options.session));
  return request;
}

ExitStatus Set(const Globals& globals, const BudgetOptions& options) {
  v1::SetBudgetRequest request = MakeRequest(options);
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    if (!options.device.empty()) {
      BERTH_ASSIGN_OR_RETURN(const v1::Device device, FindDevice(inspector, options.device));
      request.set_device(device.ordinal());
    }
    BERTH_ASSIGN_OR_RETURN(const v1::SetBudgetResponse answer, inspector.SetBudget(request));
    ComplainOfUnsavedSettings(inspector);
    return Show(globals, answer, [&] { return ForPeople(answer.budgets()); });
  });
}

}  // namespace

void AddBudget(Command app, const Globals& globals) {
  const Command verb =
      app.AddSubcommand("budget", "Show or change the limits in bytes of devices, tenants and sessions");
  verb.RequireSubcommand();
  const Command show = verb.AddSubcommand("show", "Show the limit and account of every device, tenant and session");
  show.Runs([&globals] { return List(globals); });
  const Command set = verb.AddSubcommand(
      "set", "Set a limit (operator); below the bytes in use, nothing is revoked and nothing granted until they fit");
  const auto options = std::make_shared<BudgetOptions>();
  set.AddOption("LIMIT", &options->limit, "The limit, e.g. 40GiB; \"default\" restores the configured limit")
      .Check([](const std::string& text) {
        return text == "default" ? "" : std::string(ParseBytes(text).status().message());
      })
      .Required();
  set.AddOption("--device", &options->device, "Only this device: ordinal, UUID or unique prefix");
  const Option tenant = set.AddOption("--tenant", &options->tenant,
                                      "The share of a tenant: USER (name or uid), or USER:CONTAINER")
                            .Parses(&ParseTenant);
  set.AddOption("--session", &options->session, "The share of a session, by its id")
      .Check(CheckIdIn("sessions"))
      .Excludes(tenant);
  set.Runs([&globals, options] { return Set(globals, *options); });
}

}  // namespace berth::cli
