#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/device_table.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"
#include "common/terminal_text.h"

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
    const uint64_t stopped = pool.stopped_waiters();
    table.AddRow({pool.name(), absl::StrCat(pool.cap()), absl::StrCat(pool.out()),
                  absl::StrCat(pool.waiters(), stopped > 0 ? absl::StrCat(", ", stopped, " stopped") : ""),
                  absl::StrCat(pool.overdue()), absl::StrCat(pool.peak()),
                  absl::StrCat(pool.granted_total()), absl::StrCat(pool.refused_total())});
  }
  return table.Format();
}

// Reports records that are missing from the logs' files; empty if none is missing.
std::string Unwritten(const v1::Node& node) {
  std::string text;
  if (node.unwritten_log_records() > 0) {
    absl::StrAppend(&text, "\n", node.unwritten_log_records(),
                    " memory events are missing from the log file: its disk was slow, or a write failed: the daemon's "
                    "log has the reason\n");
  }
  if (node.unwritten_audit_records() > 0) {
    absl::StrAppend(&text, "\n", node.unwritten_audit_records(),
                    " decisions are missing from the audit log: its disk was slow, or a write failed: the daemon's log "
                    "has the reason\n");
  }
  if (!node.settings_fault().empty()) {
    absl::StrAppend(&text, "\nThe next boot loses the operators' settings: ", node.settings_fault(), "\n");
  }
  return text;
}

// Returns why the last upgrade failed; empty if it did not.
std::string UpgradeFault(const v1::Node& node) {
  return node.upgrade_fault().empty() ? "" : absl::StrCat("\nThe last upgrade failed: ", node.upgrade_fault(), "\n");
}

// Returns why the daemon grants nothing; empty if it grants.
std::string LedgerFault(const v1::Node& node) {
  return node.ledger_fault().empty() ? "" : absl::StrCat("\nThe daemon grants nothing: ", node.ledger_fault(), "\n");
}

// Reports a stop that waits for the last lease; empty without one.
std::string Stopping(const v1::Node& node) {
  if (!node.stopping()) return "";
  return "\nAn operator is stopping the daemon: it grants no permits, and stops once no lease is out\n";
}

void AddReach(absl::string_view records, const v1::RecordReach& reach, std::string* text) {
  if (!reach.has_oldest()) return;
  const absl::Time now = absl::Now();
  absl::StrAppend(text, "\nThe ", records, " reaches back ", FormatSince(reach.oldest(), now));
  if (reach.has_complete_since()) {
    absl::StrAppend(text, ", and is complete for the last ", FormatSince(reach.complete_since(), now));
  }
}

// Returns how far back the records reach.
std::string Reach(const v1::Node& node) {
  std::string text;
  AddReach("audit log", node.audit_reach(), &text);
  AddReach("allocation log", node.log_reach(), &text);
  AddReach("history", node.history_reach(), &text);
  return text.empty() ? text : text + "\n";
}

absl::Status Look(const Globals& globals, const Inspector& inspector) {
  BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
  BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
  BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, inspector.ListDevices());
  if (globals.json) {
    BERTH_ASSIGN_OR_RETURN(const std::string json,
                           FormatJson({{"node", &node}, {"pools", &pools}, {"devices", &devices}}));
    Print(json);
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat(
      "Berth ", node.version(), ", serving for ", FormatSince(node.serve_time(), absl::Now()), ", epoch ",
      node.epoch(), node.kind() == v1::MEMORY_KIND_CUDA_VMM ? ", CUDA memory" : ", host memory", "\n\n",
      PoolTable(pools), "\n", DeviceTable(devices.devices()),
      FormatLostBlocks(devices.devices()), Reach(node), Unwritten(node),
      FormatPressure(node.pressure()), UpgradeFault(node), LedgerFault(node), Stopping(node));
  Print(text);
  return absl::OkStatus();
}

}  // namespace

void AddStatus(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("status", "Show the node at a glance: pools and devices");
  verb.Runs(
      [&globals] { return LookAtNode(globals, [&](const Inspector& inspector) { return Look(globals, inspector); }); });
}

}  // namespace berth::cli
