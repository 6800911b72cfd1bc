#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "berth/v1/inventory.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// The notation of `nvidia-smi topo -m` where both agree.
std::string Cell(const v1::Topology::Row& row, v1::Topology::Reach reach) {
  switch (reach) {
    case v1::Topology::SELF:
      return "X";
    case v1::Topology::NVLINK:
      return row.nvlinks().known_case() == v1::Figure::kValue ? absl::StrCat("NV", row.nvlinks().value())
                                                              : "NV";
    case v1::Topology::PCIE:
      return "PCIE";
    case v1::Topology::NONE:
      return "SYS";
    default:
      return "?";
  }
}

std::string ForPeople(const v1::Topology& topology, absl::Time now) {
  if (topology.rows().empty()) return "no devices\n";
  std::vector<Table::Column> columns = {{"DEVICE"}};
  for (const v1::Topology::Row& row : topology.rows()) columns.push_back({absl::StrCat(row.device())});
  columns.push_back({"ISLAND", Table::Align::kRight});
  columns.push_back({"GENERATION", Table::Align::kRight});
  columns.push_back({"UUID"});
  Table table(std::move(columns));
  for (const v1::Topology::Row& row : topology.rows()) {
    std::vector<std::string> cells = {absl::StrCat(row.device())};
    for (const int reach : row.reaches()) cells.push_back(Cell(row, static_cast<v1::Topology::Reach>(reach)));
    cells.push_back(absl::StrCat(row.island()));
    cells.push_back(absl::StrCat(row.generation()));
    cells.push_back(row.uuid());
    table.AddRow(std::move(cells));
  }
  const std::string age = topology.has_read_time()
                              ? absl::StrCat("Read ", FormatSince(topology.read_time(), now), " ago")
                              : "Not read yet";
  return absl::StrCat(
      table.Format(),
      "NV4: over NVLink, with 4 active links on the row's device; PCIE: over PCIe; SYS: only through host "
      "memory. ",
      age, ".\n");
}

}  // namespace

void AddTopology(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand(
      "topology", "Show how devices reach each other (NVLink, PCIe, host memory), and their NVLink islands");
  verb.Runs([&globals] {
    return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::Topology answer, inspector.GetTopology());
      return Show(globals, answer, [&] { return ForPeople(answer, absl::Now()); });
    });
  });
}

}  // namespace berth::cli
