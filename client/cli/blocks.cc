#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::string ForPeople(const v1::ListBlocksResponse& answer, absl::Time now) {
  if (answer.blocks().empty()) return "no blocks\n";
  Table table({{"BLOCK"},
               {"DEVICE", Table::Align::kRight},
               {"BYTES", Table::Align::kRight},
               {"STATE"},
               {"AGE", Table::Align::kRight},
               {"OWNER"},
               {"TENANT"},
               {"MAPPED BY"},
               {"LABEL"}});
  for (const v1::Block& block : answer.blocks()) {
    table.AddRow({absl::StrCat(block.handle().block()), absl::StrCat(block.device()),
                  FormatCount(block.bytes()), v1::Block::State_Name(block.state()),
                  FormatSince(block.create_time(), now),
                  block.owner() == 0 ? "" : absl::StrCat(block.owner()), FormatTenant(block.tenant()),
                  absl::StrJoin(block.imports(), ",",
                                [](std::string* out, const v1::Import& import) {
                                  absl::StrAppend(out, FormatProcess(import.process()));
                                }),
                  block.label()});
  }
  return table.Format();
}

}  // namespace

void AddBlocks(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand("blocks", "Show blocks: who owns them and who has them mapped");
  verb->callback([&globals, chosen] {
    *chosen = [&globals] {
      return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
        BERTH_ASSIGN_OR_RETURN(const v1::ListBlocksResponse answer, inspector.ListBlocks());
        return Show(globals, answer, [&] { return ForPeople(answer, absl::Now()); });
      });
    };
  });
}

}  // namespace berth::cli
