#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/module.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::string StateOf(const v1::KeptModule& module) {
  if (module.state() != v1::KeptModule::COMPILING) return v1::KeptModule::State_Name(module.state());
  return absl::StrCat("COMPILING by ", module.compiling().name(), " (", module.compiling().pid(), ")");
}

std::string ForPeople(const v1::ListModulesResponse& answer, Sight sight, absl::Time now) {
  const v1::ModuleUsage& usage = answer.usage();
  std::string text = absl::StrCat(
      usage.modules(), " modules, ", FormatCount(usage.bytes()), " of ", FormatCount(usage.limit_bytes()), "; ",
      usage.hits(), " hits, ", usage.misses(), " misses, ", usage.waits(), " waits; ", usage.stored(), " stored, ",
      usage.failed(), " failed, ", usage.corrupt(), " corrupt, ", usage.evicted(), " evicted\n");
  if (answer.modules().empty()) return text + LacksOthers(sight);
  Table table({{"MODULE", Table::Align::kRight},
               {"TENANT"},
               {"KEY"},
               {"FOR"},
               {"BY"},
               {"BYTES", Table::Align::kRight},
               {"HITS", Table::Align::kRight},
               {"WAITERS", Table::Align::kRight},
               {"USED", Table::Align::kRight},
               {"STATE"},
               {"LABEL"}});
  for (const v1::KeptModule& module : answer.modules()) {
    // A prefix long enough to distinguish modules.
    const std::string key = absl::BytesToHexString(module.key()).substr(0, 12);
    table.AddRow({absl::StrCat(module.id()), FormatTenant(module.tenant()), key, module.architecture(),
                  module.compiler(), FormatCount(module.bytes()), absl::StrCat(module.hits()),
                  absl::StrCat(module.waiters()), FormatSince(module.use_time(), now), StateOf(module),
                  module.label()});
  }
  return absl::StrCat(text, table.Format(), LacksOthers(sight));
}

}  // namespace

void AddModules(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("modules", "Show the compiled modules that the node stores");
  verb.Runs([&globals] {
    return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::ListModulesResponse answer, inspector.ListModules());
      return Show(globals, answer, [&] { return ForPeople(answer, sight, absl::Now()); });
    });
  });
}

}  // namespace berth::cli
