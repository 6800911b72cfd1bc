#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

std::string ForPeople(const v1::ListReservationsResponse& answer, Sight sight, absl::Time now) {
  if (answer.reservations().empty()) return NoneOf("reservations", sight);
  Table table({{"RESERVATION"},
               {"TENANT"},
               {"SESSION"},
               {"AGE", Table::Align::kRight},
               {"DEVICE", Table::Align::kRight},
               {"BYTES", Table::Align::kRight},
               {"LEFT", Table::Align::kRight},
               {"LABEL"}});
  for (const v1::Reservation& reservation : answer.reservations()) {
    for (const v1::Reservation::Claim& claim : reservation.claims()) {
      table.AddRow({absl::StrCat(reservation.id()), FormatTenant(reservation.tenant()),
                    absl::StrCat(reservation.session()), FormatSince(reservation.create_time(), now),
                    absl::StrCat(claim.device()), FormatCount(claim.bytes()), FormatCount(claim.left_bytes()),
                    reservation.label()});
    }
  }
  return table.Format() + LacksOthers(sight);
}

}  // namespace

void AddReservations(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("reservations", "Show reservations of bytes for later blocks");
  verb.Runs([&globals] {
    return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(const v1::ListReservationsResponse answer, inspector.ListReservations());
      return Show(globals, answer, [&] { return ForPeople(answer, sight, absl::Now()); });
    });
  });
}

}  // namespace berth::cli
