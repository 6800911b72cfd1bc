#include <memory>
#include <optional>
#include <string>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/admin.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/patience.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

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

// Longest wait for another process that writes the file. Longer than the time after which the daemon reads a file that
// stays open.
constexpr absl::Duration kWriterPatience = absl::Seconds(5);

// As Inspector::ReloadConfig(), once no process writes the file any more.
absl::StatusOr<v1::ReloadConfigResponse> ReloadOnceWritten(const Inspector& inspector) {
  const absl::Time deadline = SteadyNow() + Patient(kWriterPatience);
  while (true) {
    absl::StatusOr<v1::ReloadConfigResponse> answer = inspector.ReloadConfig();
    const std::optional<ErrorDetails> details = GetErrorDetails(answer.status());
    const bool being_written = details.has_value() && details->reason == Reason::kInvalidField &&
                               details->retry_after.has_value();
    if (!being_written) return answer;
    if (SteadyNow() + *details->retry_after >= deadline) {
      return absl::Status(answer.status().code(),
                          absl::StrCat(answer.status().message(), "; waited ", absl::FormatDuration(kWriterPatience),
                                       " for the process that writes it"));
    }
    absl::SleepFor(*details->retry_after);
  }
}

ExitStatus Reload(const Globals& globals) {
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::ReloadConfigResponse answer, ReloadOnceWritten(inspector));
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
