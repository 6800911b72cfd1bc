#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::string ForPeople(const v1::ListSessionsResponse& answer, Sight sight, absl::Time now) {
  Table table({{"SESSION"},
               {"TENANT"},
               {"STATE"},
               {"AGE", Table::Align::kRight},
               {"PERMITS", Table::Align::kRight},
               {"WAITING", Table::Align::kRight},
               {"BYTES", Table::Align::kRight},
               {"PROCESSES"},
               {"LABEL"}});
  for (const v1::Session& session : answer.sessions()) {
    table.AddRow({absl::StrCat(session.id()), FormatTenant(session.tenant()),
                  v1::Session::State_Name(session.state()), FormatSince(session.create_time(), now),
                  absl::StrCat(session.permit_units()), absl::StrCat(session.waiters()),
                  FormatCount(session.live_bytes()),
                  absl::StrJoin(session.processes(), ",",
                                [](std::string* out, const v1::Process& process) {
                                  absl::StrAppend(out, FormatProcess(process));
                                }),
                  session.label()});
  }
  if (table.empty()) return NoneOf("sessions", sight);
  return table.Format() + LacksOthers(sight);
}

ExitStatus List(const Globals& globals) {
  return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::ListSessionsResponse answer, inspector.ListSessions());
    return Show(globals, answer, [&] { return ForPeople(answer, sight, absl::Now()); });
  });
}

ExitStatus End(const Globals& globals, const std::string& text) {
  const uint64_t id = *ParseId(text);
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::Session session, inspector.EndSession(SessionId(id)));
    return Show(globals, session, [&] {
      return absl::StrCat("session ", session.id(), ": ", v1::Session::State_Name(session.state()), ", ",
                          session.processes_size(),
                          session.processes_size() == 1 ? " process" : " processes", " left\n");
    });
  });
}

}  // namespace

void AddSessions(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("sessions", "Show sessions, their processes and their leases");
  const auto id = std::make_shared<std::string>();
  const Command end = verb.AddSubcommand(
      "end", "End a session (operator): it gets no new lease, and its leases return when its processes end");
  end.AddOption("ID", id.get(), "The session's id").Check(CheckIdIn("sessions")).Required();
  verb.Runs([&globals, id, end] { return end.parsed() ? End(globals, *id) : List(globals); });
}

}  // namespace berth::cli
