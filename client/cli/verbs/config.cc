#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/admin.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// "file /etc/berth/berthd.toml:3".
std::string From(const v1::ConfigValue& value) {
  const std::string source = absl::AsciiStrToLower(v1::ConfigValue::Source_Name(value.source()));
  return value.where().empty() ? source : absl::StrCat(source, " ", value.where());
}

std::string ForPeople(const v1::Config& config) {
  Table table({{"KEY"}, {"VALUE"}, {"FROM"}, {"CHANGES"}});
  for (const v1::ConfigValue& value : config.values()) {
    const std::string changes = value.while_running() ? "while running" : "with a new daemon";
    table.AddRow({value.key(), value.value(), From(value),
                  value.pending().empty() ? changes : absl::StrCat(changes, ", to ", value.pending())});
  }
  return table.Format();
}

std::string ForPeople(const v1::ReloadConfigResponse& answer) {
  if (answer.changes().empty()) return "nothing has changed\n";
  std::string text;
  for (const v1::ReloadConfigResponse::Change& change : answer.changes()) {
    absl::StrAppend(&text, change.key(), ": ", change.from(), " -> ", change.to(),
                    change.why_not().empty() ? "" : absl::StrCat(" (not now: ", change.why_not(), ")"), "\n");
  }
  return text;
}

ExitStatus ShowConfig(const Globals& globals) {
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::Config config, inspector.GetConfig());
    return Show(globals, config, [&] { return ForPeople(config); });
  });
}

ExitStatus Reload(const Globals& globals) {
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::ReloadConfigResponse answer, inspector.ReloadConfig());
    return Show(globals, answer, [&] { return ForPeople(answer); });
  });
}

}  // namespace

void AddConfig(Command app, const Globals& globals) {
  const Command verb =
      app.AddSubcommand("config", "Show each configuration key with its value and its source (operator)");
  const Command reload =
      verb.AddSubcommand("reload", "Reread the configuration file; list the changes, and which need a daemon restart");
  verb.Runs([&globals, reload] { return reload.parsed() ? Reload(globals) : ShowConfig(globals); });
}

}  // namespace berth::cli
