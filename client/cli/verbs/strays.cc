#include <string>

#include "absl/strings/str_cat.h"
#include "berth/v1/permit.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::string ForPeople(const v1::ListStraysResponse& answer, Sight sight, absl::Time now) {
  if (answer.strays().empty()) return NoneOf("processes", sight, " using a device without a permit");
  Table table({{"DEVICE", Table::Align::kRight},
               {"PROCESS"},
               {"UID", Table::Align::kRight},
               {"BYTES", Table::Align::kRight},
               {"SINCE", Table::Align::kRight},
               {"SESSION"}});
  for (const v1::Stray& stray : answer.strays()) {
    table.AddRow({absl::StrCat(stray.device()), FormatProcess(stray.process()),
                  absl::StrCat(stray.process().uid()), FormatCount(stray.bytes()),
                  FormatSince(stray.first_seen_time(), now),
                  stray.session() == 0 ? "none" : absl::StrCat(stray.session())});
  }
  return table.Format() + LacksOthers(sight);
}

}  // namespace

void AddStrays(Command app, const Globals& globals) {
  const Command verb =
      app.AddSubcommand("strays", "Show processes that use a device without a permit, as the driver lists them");
  verb.Runs([&globals] {
    return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::ListStraysResponse answer, inspector.ListStrays());
      return Show(globals, answer, [&] { return ForPeople(answer, sight, absl::Now()); });
    });
  });
}

}  // namespace berth::cli
