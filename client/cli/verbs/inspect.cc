#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "client/cli/format.h"
#include "client/cli/reader_watch.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {

std::string CheckCount(const std::string& text) { return std::string(ParseCount(text).status().message()); }

std::function<std::string(const std::string&)> CheckIdIn(const char* list) {
  return [list](const std::string& text) {
    const absl::Status status = ParseId(text).status();
    return status.ok() ? "" : absl::StrCat(status.message(), " from `berth ", list, "`");
  };
}

void ComplainOfUnsavedSettings(const Inspector& inspector) {
  const absl::StatusOr<v1::Node> node = inspector.GetNode();
  if (!node.ok() || node->settings_fault().empty()) return;
  Complain(absl::StrCat("the setting is in effect, but not saved: the next boot loses it, unless a retry succeeds: ",
                        node->settings_fault()));
}

absl::StatusOr<std::shared_ptr<Session>> OpenFor(const Globals& globals, bool admin) {
  return Session::Open({.folder = globals.folder,
                        .label = "berth",
                        .admin = admin || globals.admin,
                        .observer = globals.observer,
                        .always_new = true,
                        .on_silence = &ComplainOfSilence});
}

absl::StatusOr<View> OpenView(const Globals& globals) {
  if (!globals.admin) {
    absl::StatusOr<std::shared_ptr<Session>> all =
        Session::Open({.folder = globals.folder, .observer = true, .on_silence = &ComplainOfSilence});
    if (all.ok()) return View{.session = *std::move(all), .sight = Sight::kAll};
    if (globals.observer) return all.status();
  }
  BERTH_ASSIGN_OR_RETURN(std::shared_ptr<Session> session, OpenFor(globals, globals.admin));
  return View{.session = std::move(session), .sight = globals.admin ? Sight::kAll : Sight::kOwn};
}

namespace {

// Reports on stderr that a view lacks the leases in the ledger.
void ComplainOfUnreadableLedger(const Inspector& inspector) {
  const absl::StatusOr<v1::Node> node = inspector.GetNode();
  if (!node.ok() || !node->ledger_unreadable()) return;
  Complain(absl::StrCat("the leases in the ledger are not shown, and may be in use: ", node->ledger_fault()));
}

}  // namespace

ExitStatus Look(const Globals& globals, absl::FunctionRef<absl::Status(const Inspector&, Sight)> look) {
  const absl::StatusOr<View> view = OpenView(globals);
  if (!view.ok()) return Report(view.status());
  const Inspector inspector(view->session);
  ComplainOfUnreadableLedger(inspector);
  return Report(look(inspector, view->sight));
}

namespace {

constexpr absl::string_view kWhoSeesAll =
    "--observer shows every tenant's to root, the daemon's user and its observer group";

}  // namespace

std::string NoneOf(absl::string_view what, Sight sight, absl::string_view where) {
  return sight == Sight::kAll ? absl::StrCat("no ", what, where, "\n")
                              : absl::StrCat("no ", what, " of yours", where, "; ", kWhoSeesAll, "\n");
}

std::string LacksOthers(Sight sight) {
  return sight == Sight::kAll ? "" : absl::StrCat("the list shows your tenant only; ", kWhoSeesAll, "\n");
}

ExitStatus LookAtNode(const Globals& globals, absl::FunctionRef<absl::Status(const Inspector&)> look) {
  const auto open = [&](bool observer) {
    return Session::Open({.folder = globals.folder,
                          .label = "berth",
                          .admin = globals.admin && !globals.observer,
                          .observer = observer,
                          .always_new = true,
                          .on_silence = &ComplainOfSilence});
  };
  absl::StatusOr<std::shared_ptr<Session>> session = open(globals.observer || globals.admin);
  // A full node or run folder has no place for a session. Observers need none.
  if (GetErrorDetails(session.status()).has_value()) {
    if (absl::StatusOr<std::shared_ptr<Session>> observer = open(true); observer.ok()) session = *std::move(observer);
  }
  if (!session.ok()) return Report(session.status());
  return Report(look(Inspector(*session)));
}

ExitStatus Inspect(const Globals& globals, bool admin,
                   absl::FunctionRef<absl::Status(const Inspector&)> look) {
  const absl::StatusOr<std::shared_ptr<Session>> session = OpenFor(globals, admin);
  if (!session.ok()) return Report(session.status());
  return Report(look(Inspector(*session)));
}

ExitStatus Act(const Globals& globals, absl::FunctionRef<absl::Status(const Inspector&)> act) {
  absl::StatusOr<std::shared_ptr<Session>> session = OpenFor(globals, /*admin=*/!globals.observer);
  if (!session.ok() && !globals.admin && !globals.observer) session = OpenFor(globals, /*admin=*/false);
  if (!session.ok()) return Report(session.status());
  return Report(act(Inspector(*session)));
}

absl::Status Follow(const Inspector& inspector, absl::FunctionRef<absl::Status(const Inspector&)> follow) {
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<ReaderWatch> reader, ReaderWatch::Start());
  return reader->ResultOf(follow(inspector.With(reader->cancellation())));
}

absl::Status Show(const Globals& globals, const google::protobuf::Message& message,
                  absl::FunctionRef<std::string()> for_people) {
  const absl::StatusOr<std::string> text = globals.json ? FormatJson(message) : for_people();
  BERTH_RETURN_IF_ERROR(text.status());
  Print(*text);
  return absl::OkStatus();
}

}  // namespace berth::cli
