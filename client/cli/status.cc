#include <stdio.h>

#include "absl/strings/str_cat.h"
#include "client/cli/device_table.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::string PoolTable(const v1::ListPoolsResponse& answer) {
  Table table({{"POOL"},
               {"CAP", Table::Align::kRight},
               {"OUT", Table::Align::kRight},
               {"WAITING", Table::Align::kRight},
               {"OVERDUE", Table::Align::kRight},
               {"PEAK", Table::Align::kRight},
               {"GRANTED", Table::Align::kRight},
               {"REFUSED", Table::Align::kRight}});
  for (const v1::Pool& pool : answer.pools()) {
    table.AddRow({pool.name(), absl::StrCat(pool.cap()), absl::StrCat(pool.out()),
                  absl::StrCat(pool.waiters()), absl::StrCat(pool.overdue()), absl::StrCat(pool.peak()),
                  absl::StrCat(pool.granted_total()), absl::StrCat(pool.refused_total())});
  }
  return table.Format();
}

// What the logs' files lack, where they lack anything.
std::string Unwritten(const v1::Node& node) {
  std::string text;
  if (node.unwritten_log_records() > 0) {
    absl::StrAppend(&text, "\n", node.unwritten_log_records(),
                    " records of what happened to memory are not in the log's file, which was slow or full\n");
  }
  if (node.unwritten_audit_records() > 0) {
    absl::StrAppend(&text, "\n", node.unwritten_audit_records(),
                    " decisions are not in the audit log, whose disk was slow or full\n");
  }
  return text;
}

// Why nothing is granted, where that is so.
std::string LedgerFault(const v1::Node& node) {
  return node.ledger_fault().empty() ? "" : absl::StrCat("\nNothing is granted: ", node.ledger_fault(), "\n");
}

absl::Status Look(const Globals& globals, const Inspector& inspector) {
  BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
  BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
  BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, inspector.ListDevices());
  if (globals.json) {
    BERTH_ASSIGN_OR_RETURN(const std::string json,
                           FormatJson({{"node", &node}, {"pools", &pools}, {"devices", &devices}}));
    ::fputs(json.c_str(), stdout);
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat(
      "Berth ", node.version(), ", serving for ", FormatSince(node.serve_time(), absl::Now()), ", epoch ",
      node.epoch(), node.kind() == v1::MEMORY_KIND_CUDA_VMM ? ", CUDA memory" : ", host memory", "\n\n",
      PoolTable(pools), "\n", DeviceTable(devices.devices()), Unwritten(node),
      FormatPressure(node.pressure()), LedgerFault(node));
  ::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

void AddStatus(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand("status", "Show the node at a glance: pools and devices");
  verb->callback([&globals, chosen] {
    *chosen = [&globals] {
      return LookAtNode(globals, [&](const Inspector& inspector) { return Look(globals, inspector); });
    };
  });
}

}  // namespace berth::cli
