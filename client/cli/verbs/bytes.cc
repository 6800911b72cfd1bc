#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::vector<Table::Column> WithByteColumns(std::vector<Table::Column> columns) {
  for (const char* title : {"LIVE", "RETIRED", "QUARANTINED", "OUTSTANDING", "RESERVED", "WARM"}) {
    columns.push_back({title, Table::Align::kRight});
  }
  return columns;
}

void AppendBytes(const v1::ByteCounts& bytes, std::vector<std::string>* row) {
  for (const uint64_t count : {bytes.live(), bytes.retired(), bytes.quarantined(), bytes.outstanding(),
                               bytes.reserved(), bytes.warm()}) {
    row->push_back(FormatCount(count));
  }
}

std::string ForPeople(const v1::Usage& usage, Sight sight) {
  std::vector<Table::Column> columns = WithByteColumns({{"DEVICE"}, {"BUDGET", Table::Align::kRight}});
  columns.push_back({"DAEMON", Table::Align::kRight});
  Table devices(std::move(columns));
  for (const v1::Device& device : usage.devices()) {
    std::vector<std::string> row = {absl::StrCat(device.ordinal()), FormatCount(device.budget_bytes())};
    AppendBytes(device.bytes(), &row);
    row.push_back(FormatCount(device.bytes().daemon()));
    devices.AddRow(std::move(row));
  }
  Table rows(WithByteColumns({{"DEVICE"}, {"TENANT"}, {"SESSION"}, {"LABEL"}}));
  for (const v1::Usage::Row& usage_row : usage.rows()) {
    std::vector<std::string> row = {absl::StrCat(usage_row.device()), FormatTenant(usage_row.tenant()),
                                    usage_row.session() == 0 ? "" : absl::StrCat(usage_row.session()),
                                    usage_row.label()};
    AppendBytes(usage_row.bytes(), &row);
    rows.AddRow(std::move(row));
  }
  return absl::StrCat(devices.Format(), rows.empty() ? "" : absl::StrCat("\n", rows.Format()), LacksOthers(sight));
}

}  // namespace

void AddBytes(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("bytes", "Show the use of bytes by device, tenant, session and label");
  verb.Runs([&globals] {
    return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::Usage usage, inspector.GetUsage());
      return Show(globals, usage, [&] { return ForPeople(usage, sight); });
    });
  });
}

}  // namespace berth::cli
