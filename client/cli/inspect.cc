#include <stdio.h>

#include "client/cli/format.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {

std::string CheckCount(const std::string& text) { return std::string(ParseCount(text).status().message()); }

absl::StatusOr<std::shared_ptr<Session>> OpenFor(const Globals& globals, bool admin) {
  return Session::Open({.folder = globals.folder,
                        .label = "berth",
                        .admin = admin || globals.admin,
                        .observer = globals.observer,
                        .always_new = true});
}

ExitStatus LookAtNode(const Globals& globals, absl::FunctionRef<absl::Status(const Inspector&)> look) {
  const absl::StatusOr<std::shared_ptr<Session>> session =
      Session::Open({.folder = globals.folder,
                     .label = "berth",
                     .admin = globals.admin && !globals.observer,
                     .observer = globals.observer || globals.admin,
                     .always_new = true});
  if (!session.ok()) return Report(session.status());
  return Report(look(Inspector(*session)));
}

ExitStatus Inspect(const Globals& globals, bool admin,
                   absl::FunctionRef<absl::Status(const Inspector&)> look) {
  const absl::StatusOr<std::shared_ptr<Session>> session = OpenFor(globals, admin);
  if (!session.ok()) return Report(session.status());
  return Report(look(Inspector(*session)));
}

absl::Status Show(const Globals& globals, const google::protobuf::Message& message,
                  absl::FunctionRef<std::string()> for_people) {
  absl::StatusOr<std::string> text = globals.json ? FormatJson(message) : for_people();
  BERTH_RETURN_IF_ERROR(text.status());
  ::fputs(text->c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace berth::cli
