#include <stdio.h>

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/block.h"
#include "client/cli/format.h"
#include "client/cli/publish.h"
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
               {"KIND"},
               {"STATE"},
               {"AGE", Table::Align::kRight},
               {"OWNER"},
               {"TENANT"},
               {"MAPPED BY"},
               {"NAME"},
               {"LABEL"}});
  for (const v1::Block& block : answer.blocks()) {
    table.AddRow({absl::StrCat(block.handle().block()), absl::StrCat(block.device()),
                  FormatCount(block.bytes()), FormatExportKind(block.export_kind()),
                  absl::StrCat(v1::Block::State_Name(block.state()), block.torn() ? ", torn" : "",
                               block.release_error().empty() ? "" : ", stuck"),
                  FormatSince(block.create_time(), now),
                  block.owner() == 0 ? "" : absl::StrCat(block.owner()), FormatTenant(block.tenant()),
                  absl::StrJoin(block.imports(), ",",
                                [](std::string* out, const v1::Import& import) {
                                  absl::StrAppend(out, FormatProcess(import.process()));
                                }),
                  block.name(), block.label()});
  }
  std::string text = table.Format();
  for (const v1::Block& block : answer.blocks()) {
    if (block.release_error().empty()) continue;
    absl::StrAppend(&text, "block ", block.handle().block(), " is not taken back: ", block.release_error(),
                    "\n");
  }
  return text;
}

std::string ImportsForPeople(const v1::ListBlocksResponse& answer, absl::Time now) {
  Table table({{"BLOCK"},
               {"NAME"},
               {"IMPORT", Table::Align::kRight},
               {"PROCESS"},
               {"SESSION"},
               {"ACCESS"},
               {"SINCE", Table::Align::kRight},
               {"ASKED BACK"}});
  for (const v1::Block& block : answer.blocks()) {
    for (const v1::Import& import : block.imports()) {
      const bool writes = import.read_only() == v1::READ_ONLY_UNSPECIFIED;
      table.AddRow({absl::StrCat(block.handle().block()), block.name().empty() ? block.label() : block.name(),
                    absl::StrCat(import.id()), FormatProcess(import.process()),
                    absl::StrCat(import.session()), writes ? "read-write" : "read-only",
                    FormatSince(import.import_time(), now), import.recalled() ? "yes" : "no"});
    }
  }
  return table.empty() ? "no imports\n" : table.Format();
}

ExitStatus List(const Globals& globals, bool imports) {
  return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::ListBlocksResponse answer, inspector.ListBlocks());
    return Show(globals, answer, [&] {
      return imports ? ImportsForPeople(answer, absl::Now()) : ForPeople(answer, absl::Now());
    });
  });
}

ExitStatus Publish(const Globals& globals, const PublishOptions& options) {
  const auto session = OpenFor(globals, /*admin=*/false);
  if (!session.ok()) return Report(session.status());
  const absl::StatusOr<Bytes> size = PublishFile(*session, options);
  if (!size.ok()) return Report(size.status());
  if (!globals.json) ::printf("%s: %s\n", options.name.c_str(), FormatBytes(*size).c_str());
  return {};
}

struct UnpublishOptions {
  std::string name;
  std::string tenant;
};

ExitStatus Unpublish(const Globals& globals, const UnpublishOptions& options) {
  std::optional<Block::Publisher> publisher;
  if (!options.tenant.empty()) {
    const absl::StatusOr<v1::Tenant> tenant = ParseTenant(options.tenant);
    if (!tenant.ok()) {
      Report(tenant.status());
      return {.code = kUsage};
    }
    publisher = Block::Publisher{.uid = tenant->uid(), .container = tenant->container()};
  }
  const auto session = OpenFor(globals, publisher.has_value());
  if (!session.ok()) return Report(session.status());
  return Report(Block::Unpublish(*session, options.name, publisher));
}

// Recalls a block or frees it: `change` is a method of Inspector's.
ExitStatus Change(const Globals& globals, const std::string& id,
                  absl::StatusOr<v1::Block> (Inspector::*change)(BlockId) const) {
  const absl::StatusOr<uint64_t> block = ParseId(id);
  if (!block.ok()) {
    Report(block.status());
    return {.code = kUsage};
  }
  return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
    v1::ListBlocksResponse changed;
    BERTH_ASSIGN_OR_RETURN(*changed.add_blocks(), (inspector.*change)(BlockId(*block)));
    return Show(globals, changed.blocks(0), [&] { return ForPeople(changed, absl::Now()); });
  });
}

ExitStatus ClearTorn(const Globals& globals, BlockId block) {
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::Block answer, inspector.ClearTorn(block));
    return Show(globals, answer, [&] { return absl::StrCat("block ", block.value(), " is whole\n"); });
  });
}

}  // namespace

void AddBlocks(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand("blocks", "Show blocks: who owns them and who has them mapped");
  const auto imports = std::make_shared<bool>(false);
  verb->add_flag("--imports", *imports,
                 "Show every import: who maps what, since when, and whether it was asked back");
  const auto published = std::make_shared<PublishOptions>();
  CLI::App* const publish = verb->add_subcommand(
      "publish", "Load a file into a block that stays under a name; this user's sessions map it");
  publish->add_option("NAME", published->name, "The block's name")->required();
  publish->add_option("FILE", published->path, "What is loaded into it")->required();
  publish->add_option("--device", published->device, "The device's ordinal");
  const auto unpublished = std::make_shared<UnpublishOptions>();
  CLI::App* const unpublish = verb->add_subcommand("unpublish", "Delete a published block");
  unpublish->add_option("NAME", unpublished->name, "The block's name")->required();
  unpublish->add_option("--tenant", unpublished->tenant, "Whose (operator): UID, or UID:CONTAINER");
  const auto id = std::make_shared<std::string>();
  CLI::App* const recall =
      verb->add_subcommand("recall", "Ask who maps a block to let go of it, without freeing it");
  recall->add_option("BLOCK", *id, "The block's id")->required();
  CLI::App* const free = verb->add_subcommand("free", "Free a block, whichever session made it");
  free->add_option("BLOCK", *id, "The block's id")->required();
  const auto whole = std::make_shared<uint64_t>(0);
  CLI::App* const clear_torn =
      verb->add_subcommand("clear-torn", "Say that a block is whole which its writer left torn (operator)");
  clear_torn->add_option("BLOCK", *whole, "The block's id")->required();
  verb->callback([=, &globals] {
    if (recall->parsed()) {
      *chosen = [&globals, id] { return Change(globals, *id, &Inspector::RecallBlock); };
    } else if (free->parsed()) {
      *chosen = [&globals, id] { return Change(globals, *id, &Inspector::FreeBlock); };
    } else if (clear_torn->parsed()) {
      *chosen = [&globals, whole] { return ClearTorn(globals, BlockId(*whole)); };
    } else if (publish->parsed()) {
      *chosen = [&globals, published] { return Publish(globals, *published); };
    } else if (unpublish->parsed()) {
      *chosen = [&globals, unpublished] { return Unpublish(globals, *unpublished); };
    } else {
      *chosen = [&globals, imports] { return List(globals, *imports); };
    }
  });
}

}  // namespace berth::cli
