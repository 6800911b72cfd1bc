#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "berth/v1/plan.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// "current", or why the plan is stale and since when.
std::string DescribeState(const v1::Plan& plan, absl::Time now) {
  if (plan.stale() == v1::Plan::STALE_UNSPECIFIED) return "current";
  return absl::StrCat("stale: ", v1::Plan::Stale_Name(plan.stale()), " ", plan.stale_uuid(), ", ",
                      FormatSince(plan.stale_time(), now));
}

std::string ForPeople(const v1::ListPlansResponse& answer, Sight sight, absl::Time now) {
  if (answer.plans().empty()) return NoneOf("plans", sight);
  Table table({{"PLAN"},
               {"REVISION", Table::Align::kRight},
               {"TENANT"},
               {"SESSION"},
               {"AGE", Table::Align::kRight},
               {"UNITS", Table::Align::kRight},
               {"DEVICES", Table::Align::kRight},
               {"POOL"},
               {"STATE"},
               {"LABEL"}});
  for (const v1::Plan& plan : answer.plans()) {
    int devices = 0;
    for (const v1::PlanDevice& device : plan.devices()) devices += device.units() > 0 ? 1 : 0;
    table.AddRow({absl::StrCat(plan.id()), absl::StrCat(plan.revision()), FormatTenant(plan.tenant()),
                  absl::StrCat(plan.session()), FormatSince(plan.create_time(), now),
                  absl::StrCat(plan.units()), absl::StrCat(devices), plan.pool(), DescribeState(plan, now),
                  plan.label()});
  }
  return table.Format() + LacksOthers(sight);
}

std::string DescribeWeights(const v1::Plan& plan) {
  switch (plan.weight_source()) {
    case v1::MakePlanRequest::GIVEN:
      return "given by the caller";
    case v1::MakePlanRequest::BANDWIDTH:
      return "bandwidth measured by the caller";
    default:
      return absl::StrCat("scores when the plan was made (formula ", plan.score_version(), ")");
  }
}

std::string DescribeConstraints(const v1::Plan& plan) {
  std::vector<std::string> all;
  if (plan.bytes_per_unit() > 0) all.push_back(absl::StrCat(FormatCount(plan.bytes_per_unit()), " per unit"));
  if (plan.min_units() > 0) all.push_back(absl::StrCat("at least ", plan.min_units(), " units per device"));
  if (plan.max_devices() > 0) all.push_back(absl::StrCat("at most ", plan.max_devices(), " devices"));
  if (plan.one_island()) all.push_back("one NVLink island");
  return all.empty() ? "none" : absl::StrJoin(all, ", ");
}

std::string DescribeShare(const v1::PlanDevice& device) {
  return device.units() > 0 ? absl::StrCat(device.units()) : v1::PlanDevice::Left_Name(device.left());
}

// Explains how the plan was made.
std::string Explain(const v1::Plan& plan, absl::Time now) {
  std::string text =
      absl::StrCat("plan ", plan.id(), " revision ", plan.revision(), ": ", plan.units(), " units",
                   plan.label().empty() ? "" : absl::StrCat(", \"", plan.label(), "\""), ", made ",
                   FormatSince(plan.plan_time(), now), " ago\nstate: ", DescribeState(plan, now),
                   "\nweights: ", DescribeWeights(plan), "\nconstraints: ", DescribeConstraints(plan), "\n");
  if (!plan.pool().empty()) {
    absl::StrAppend(&text, "permits: ", plan.permit_units(), " of pool ", plan.pool(), " on each device\n");
  }
  if (plan.reservation() != 0) absl::StrAppend(&text, "bytes: reservation ", plan.reservation(), "\n");
  Table devices({{"DEVICE", Table::Align::kRight},
                 {"UUID"},
                 {"SMS", Table::Align::kRight},
                 {"FREE", Table::Align::kRight},
                 {"WEIGHT", Table::Align::kRight},
                 {"IDEAL", Table::Align::kRight},
                 {"CAPACITY", Table::Align::kRight},
                 {"ASSIGNED", Table::Align::kRight}});
  for (const v1::PlanDevice& device : plan.devices()) {
    devices.AddRow({absl::StrCat(device.ordinal()), device.uuid(), absl::StrCat(device.sm_count()),
                    FormatCount(device.free_bytes()), absl::StrFormat("%.1f", device.weight()),
                    absl::StrFormat("%.1f", device.ideal_units()),
                    device.has_room_units() ? absl::StrCat(device.room_units()) : "any",
                    DescribeShare(device)});
  }
  Table tiles({{"TILE", Table::Align::kRight},
               {"DEVICE", Table::Align::kRight},
               {"FROM", Table::Align::kRight},
               {"TO", Table::Align::kRight},
               {"UNITS", Table::Align::kRight}});
  for (int i = 0; i < plan.tiles_size(); ++i) {
    const v1::Plan::Tile& tile = plan.tiles(i);
    tiles.AddRow({absl::StrCat(i), absl::StrCat(plan.devices(tile.device()).ordinal()),
                  absl::StrCat(tile.begin()), absl::StrCat(tile.end()),
                  absl::StrCat(tile.end() - tile.begin())});
  }
  return absl::StrCat(text, devices.Format(), tiles.Format());
}

}  // namespace

void AddPlans(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("plans", "Show plans, or one plan in detail");
  const auto plan = std::make_shared<std::string>();
  verb.AddOption("PLAN", plan.get(), "The plan's id: shows the weights, capacity and assigned units of its devices")
      .Check(CheckIdIn("plans"));
  verb.Runs([&globals, plan]() -> ExitStatus {
    const uint64_t id = plan->empty() ? 0 : *ParseId(*plan);
    return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
      if (id != 0) {
        BERTH_ASSIGN_OR_RETURN(const v1::Plan answer, inspector.GetPlan(PlanId(id)));
        return Show(globals, answer, [&] { return Explain(answer, absl::Now()); });
      }
      BERTH_ASSIGN_OR_RETURN(const v1::ListPlansResponse answer, inspector.ListPlans());
      return Show(globals, answer, [&] { return ForPeople(answer, sight, absl::Now()); });
    });
  });
}

}  // namespace berth::cli
