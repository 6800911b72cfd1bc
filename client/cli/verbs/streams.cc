#include "absl/strings/str_cat.h"
#include "berth/v1/fence.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::string ForPeople(const v1::ListStreamsResponse& answer, Sight sight, absl::Time now) {
  if (answer.streams().empty()) return NoneOf("streams", sight);
  Table table({{"PROCESS"},
               {"DEVICE", Table::Align::kRight},
               {"STREAM", Table::Align::kRight},
               {"AGE", Table::Align::kRight},
               {"DONE", Table::Align::kRight},
               {"LAST VALUE", Table::Align::kRight},
               {"LOCAL USES", Table::Align::kRight},
               {"OPEN USES", Table::Align::kRight},
               {"OPEN FOR", Table::Align::kRight}});
  for (const v1::FenceStream& stream : answer.streams()) {
    table.AddRow({FormatProcess(stream.process()), absl::StrCat(stream.device()), absl::StrCat(stream.id()),
                  FormatSince(stream.open_time(), now), absl::StrCat(stream.done()),
                  absl::StrCat(stream.last_value()),
                  absl::StrCat(stream.local_begun() - stream.local_ended()), absl::StrCat(stream.open_uses()),
                  stream.has_open_use_time() ? FormatSince(stream.open_use_time(), now) : ""});
  }
  return table.Format() + LacksOthers(sight);
}

}  // namespace

void AddStreams(Command app, const Globals& globals) {
  const Command verb =
      app.AddSubcommand("streams", "Show streams of shared blocks: their progress, and uses that are not finished");
  verb.Runs([&globals] {
    return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::ListStreamsResponse answer, inspector.ListStreams());
      return Show(globals, answer, [&] { return ForPeople(answer, sight, absl::Now()); });
    });
  });
}

}  // namespace berth::cli
