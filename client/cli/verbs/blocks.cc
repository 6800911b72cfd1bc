#include <stdio.h>

#include <memory>
#include <optional>

#include <berth/block.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "client/cli/verbs/publish.h"
#include "common/status_macros.h"
#include "google/protobuf/struct.pb.h"

namespace berth::cli {
namespace {

std::string ForPeople(const v1::ListBlocksResponse& answer, absl::Time now) {
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
                               block.lost() && block.state() != v1::Block::LOST ? ", lost" : "",
                               block.release_error().empty() ? "" : ", stuck"),
                  block.has_create_time() ? FormatSince(block.create_time(), now) : "",
                  block.owner() == 0 ? "" : absl::StrCat(block.owner()),
                  block.has_tenant() ? FormatTenant(block.tenant()) : "",
                  absl::StrJoin(block.imports(), ",",
                                [](std::string* out, const v1::Import& import) {
                                  absl::StrAppend(out, FormatProcess(import.process()));
                                }),
                  block.name(), block.label()});
  }
  if (table.empty()) return "";
  std::string text = table.Format();
  for (const v1::Block& block : answer.blocks()) {
    if (block.release_error().empty()) continue;
    absl::StrAppend(&text, "block ", block.handle().block(), " is not released: ", block.release_error(), "\n");
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
               {"RECALLED"}});
  for (const v1::Block& block : answer.blocks()) {
    for (const v1::Import& import : block.imports()) {
      const bool writes = import.read_only() == v1::READ_ONLY_UNSPECIFIED;
      table.AddRow({absl::StrCat(block.handle().block()), block.name().empty() ? block.label() : block.name(),
                    absl::StrCat(import.id()), FormatProcess(import.process()),
                    absl::StrCat(import.session()), writes ? "read-write" : "read-only",
                    FormatSince(import.import_time(), now), import.recalled() ? "yes" : "no"});
    }
  }
  return table.empty() ? "" : table.Format();
}

ExitStatus List(const Globals& globals, bool imports) {
  return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::ListBlocksResponse answer, inspector.ListBlocks());
    return Show(globals, answer, [&] {
      const std::string rows = imports ? ImportsForPeople(answer, absl::Now()) : ForPeople(answer, absl::Now());
      return rows.empty() ? NoneOf(imports ? "imports" : "blocks", sight) : rows + LacksOthers(sight);
    });
  });
}

ExitStatus Publish(const Globals& globals, Publication publication, const std::vector<std::string>& grantees) {
  for (const std::string& grantee : grantees) {
    const absl::StatusOr<std::vector<uint32_t>> uids = FindGrantees(grantee);
    // A user may have left the system since the command line was parsed.
    if (!uids.ok()) return Report(uids.status());
    publication.grants.insert(publication.grants.end(), uids->begin(), uids->end());
  }
  const auto session = OpenFor(globals, /*admin=*/false);
  if (!session.ok()) return Report(session.status());
  const absl::StatusOr<PublishedFile> published = PublishFile(*session, publication);
  if (!published.ok()) return Report(published.status());
  google::protobuf::Struct json;
  (*json.mutable_fields())["name"].set_string_value(publication.name);
  (*json.mutable_fields())["block"].set_string_value(absl::StrCat(published->block.value()));
  (*json.mutable_fields())["bytes"].set_string_value(absl::StrCat(published->bytes.count()));
  (*json.mutable_fields())["device"].set_number_value(published->device);
  return Report(Show(globals, json, [&] {
    return absl::StrCat(publication.name, ": ", FormatBytes(published->bytes), " on device ", published->device, "\n");
  }));
}

struct UnpublishOptions {
  std::string name;
  std::string tenant;
};

ExitStatus Unpublish(const Globals& globals, const UnpublishOptions& options) {
  std::optional<Block::Publisher> publisher;
  if (!options.tenant.empty()) {
    const v1::Tenant tenant = *ParseTenant(options.tenant);
    publisher = Block::Publisher{.uid = tenant.uid(), .container = tenant.container()};
  }
  const auto session = OpenFor(globals, publisher.has_value());
  if (!session.ok()) return Report(session.status());
  const absl::Status unpublished = Block::Unpublish(*session, options.name, publisher);
  if (!unpublished.ok()) return Report(unpublished);
  google::protobuf::Struct json;
  (*json.mutable_fields())["name"].set_string_value(options.name);
  return Report(Show(globals, json, [] { return std::string(); }));
}

// Recalls or frees a block; `change` is the method of Inspector.
ExitStatus Change(const Globals& globals, const std::string& id,
                  absl::StatusOr<v1::Block> (Inspector::*change)(BlockId) const) {
  const uint64_t block = *ParseId(id);
  return Act(globals, [&](const Inspector& inspector) -> absl::Status {
    v1::ListBlocksResponse changed;
    BERTH_ASSIGN_OR_RETURN(*changed.add_blocks(), (inspector.*change)(BlockId(block)));
    return Show(globals, changed.blocks(0), [&] { return ForPeople(changed, absl::Now()); });
  });
}

ExitStatus ClearTorn(const Globals& globals, const std::string& id) {
  const uint64_t block = *ParseId(id);
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::Block answer, inspector.ClearTorn(BlockId(block)));
    return Show(globals, answer, [&] { return absl::StrCat("block ", block, " is marked as consistent\n"); });
  });
}

}  // namespace

void AddBlocks(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("blocks", "Show blocks, with their owners and the processes that map them");
  const auto imports = std::make_shared<bool>(false);
  verb.AddFlag("--imports", imports.get(),
               "Show each import: the process, when it imported the block, and whether a recall is pending");
  const auto published = std::make_shared<Publication>();
  const auto grantees = std::make_shared<std::vector<std::string>>();
  const Command publish =
      verb.AddSubcommand("publish", "Load a file into a named block, which this user's sessions can import");
  publish.AddOption("NAME", &published->name, "The block's name").Required();
  publish.AddOption("FILE", &published->path, "A regular file that no process is writing").Required();
  publish.AddOption("--device", &published->device,
                    "The device's ordinal, UUID or unique prefix (default: the device with the most free bytes)");
  publish.AddFlag("--replace", &published->replace,
                  "If a block has the name already, replace it in one step; an import gets the old block or the new "
                  "one");
  publish
      .AddOption("--grant", grantees.get(),
                 "Grant the block to a user (name or uid) or a group (group:NAME, group:GID); may be repeated")
      .Parses(&FindGrantees)
      .OneWord();
  const auto unpublished = std::make_shared<UnpublishOptions>();
  const Command unpublish = verb.AddSubcommand("unpublish", "Delete a published block");
  unpublish.AddOption("NAME", &unpublished->name, "The block's name").Required();
  unpublish.AddOption("--tenant", &unpublished->tenant,
                      "The block's tenant (operator): USER (name or uid), or USER:CONTAINER")
      .Parses(&ParseTenant);
  const auto id = std::make_shared<std::string>();
  const Command recall = verb.AddSubcommand(
      "recall", "Request that every process that maps a block release it; the block stays allocated");
  recall.AddOption("BLOCK", id.get(), "The block's id").Check(CheckIdIn("blocks")).Required();
  const Command free =
      verb.AddSubcommand("free", "Free a block of any of this user's sessions; an operator can free every block");
  free.AddOption("BLOCK", id.get(), "The block's id").Check(CheckIdIn("blocks")).Required();
  const Command clear_torn =
      verb.AddSubcommand("clear-torn", "Mark a block as consistent after its writer died mid-write (operator)");
  clear_torn.AddOption("BLOCK", id.get(), "The block's id").Check(CheckIdIn("blocks")).Required();
  verb.Runs([=, &globals] {
    if (recall.parsed()) return Change(globals, *id, &Inspector::RecallBlock);
    if (free.parsed()) return Change(globals, *id, &Inspector::FreeBlock);
    if (clear_torn.parsed()) return ClearTorn(globals, *id);
    if (publish.parsed()) return Publish(globals, *published, *grantees);
    if (unpublish.parsed()) return Unpublish(globals, *unpublished);
    return List(globals, *imports);
  });
}

}  // namespace berth::cli
