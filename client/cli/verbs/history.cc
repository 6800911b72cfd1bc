#include "client/cli/verbs/history.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/history.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/sdk/admin/history.h"

namespace berth::cli {
namespace {

using Lease = v1::HistoryLease;

struct HistoryFilter {
  std::string since;
  std::string until;
  std::string pool;
  std::string kind;
  std::string limit = "100";
};

std::string Words(const std::string& name) {
  return absl::AsciiStrToLower(absl::StrReplaceAll(name, {{"_", " "}}));
}

absl::StatusOr<absl::Time> ParseSince(const std::string& text) {
  return ParseMoment(text, absl::Now(), absl::LocalTimeZone());
}

// A lease whose time is shown as `text` was in use at that time.
absl::StatusOr<absl::Time> ParseUntil(const std::string& text) {
  return ParseLastMoment(text, absl::Now(), absl::LocalTimeZone());
}

absl::StatusOr<Lease::Kind> ParseKind(const std::string& text) {
  Lease::Kind kind;
  if (Lease::Kind_Parse(absl::AsciiStrToUpper(text), &kind) && kind != Lease::KIND_UNSPECIFIED) return kind;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a kind: expected permit, block, reservation or plan"));
}

absl::Time ReadTime(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

void WriteTime(absl::Time time, google::protobuf::Timestamp* out) {
  out->set_seconds(absl::ToUnixSeconds(time));
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(out->seconds()))));
}

// Checks that a lease can be in use between the two times.
absl::Status CheckOrder(const HistoryFilter& filter) {
  if (filter.since.empty() || filter.until.empty()) return absl::OkStatus();
  // In this order: an age counts from the time of its parsing.
  const absl::Time since = *ParseSince(filter.since);
  if (since <= *ParseUntil(filter.until)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--since ", filter.since, " is later than --until ", filter.until,
                                                 ": no lease is between them; exchange the two times"));
}

v1::ListHistoryRequest ReadRequest(const HistoryFilter& filter) {
  v1::ListHistoryRequest request;
  if (!filter.since.empty()) WriteTime(*ParseSince(filter.since), request.mutable_since());
  if (!filter.until.empty()) WriteTime(*ParseUntil(filter.until), request.mutable_until());
  request.set_pool(filter.pool);
  if (!filter.kind.empty()) request.set_kind(*ParseKind(filter.kind));
  return request;
}

std::string Amount(const Lease& lease) {
  if (lease.kind() == Lease::BLOCK || lease.kind() == Lease::RESERVATION) return FormatCount(lease.bytes());
  return absl::StrCat(lease.units(), lease.pool().empty() ? "" : " of ", lease.pool());
}

std::string Held(const Lease& lease, absl::Time now) {
  if (lease.has_held()) return FormatDuration(lease.held());
  return lease.end() == Lease::END_UNSPECIFIED ? FormatSince(lease.grant_time(), now) : "";
}

std::string ForPeople(const v1::ListHistoryResponse& answer, Sight sight, absl::Time now) {
  if (answer.leases().empty()) return NoneOf("leases", sight);
  Table table({{"GRANTED"},
               {"KIND"},
               {"ID"},
               {"WHAT"},
               {"DEVICES"},
               {"TENANT"},
               {"PROCESS"},
               {"WAITED", Table::Align::kRight},
               {"HELD", Table::Align::kRight},
               {"END"},
               {"LABEL"}});
  // In chronological order.
  for (int i = answer.leases_size() - 1; i >= 0; --i) {
    const Lease& lease = answer.leases(i);
    const absl::Time granted = ReadTime(lease.grant_time());
    const bool out = lease.end() == Lease::END_UNSPECIFIED;
    table.AddRow({FormatMoment(granted, absl::LocalTimeZone()), Words(Lease::Kind_Name(lease.kind())),
                  absl::StrCat(lease.id()), Amount(lease),
                  absl::StrJoin(lease.device_uuids(), ","), FormatTenant(lease.tenant()),
                  lease.has_process() ? FormatProcess(lease.process()) : "", FormatDuration(lease.waited()),
                  Held(lease, now), out ? "out" : Words(Lease::End_Name(lease.end())), lease.label()});
  }
  return table.Format() + LacksOthers(sight);
}

// Prints what the answer lacks, so that a reader does not take it for complete.
void PrintMissing(const v1::ListHistoryResponse& answer, const HistoryFilter& filter) {
  if (!answer.fault().empty()) {
    PrintError(absl::StrCat("berth history: the daemon does not record leases now: ", answer.fault(), "\n"));
  }
  if (answer.unwritten_total() > 0) {
    PrintError(absl::StrCat("berth history: ", answer.unwritten_total(),
                            " grants and ends are missing: the history's disk was slow, or a write failed: the "
                            "daemon's log has the reason\n"));
  }
  if (!answer.next_page_token().empty()) {
    PrintError(
        absl::StrCat("berth history: showing the last ", filter.limit, " leases; a larger --limit shows more\n"));
    return;
  }
  if (!answer.has_evicted_until()) return;
  const absl::Time evicted_until = ReadTime(answer.evicted_until());
  if (!filter.since.empty() && *ParseSince(filter.since) > evicted_until) return;
  PrintError(absl::StrCat("berth history: leases granted until ", FormatMoment(evicted_until, absl::LocalTimeZone()),
                          " may be missing: the daemon holds at most ", answer.row_limit(),
                          " leases (history.rows) and ", FormatCount(answer.byte_limit()),
                          " (history.size); a larger limit in its configuration holds later ones longer\n"));
}

ExitStatus PrintHistory(const Globals& globals, const HistoryFilter& filter) {
  const absl::Time now = absl::Now();
  const absl::StatusOr<View> view = OpenView(globals);
  if (!view.ok()) return Report(view.status());
  const absl::StatusOr<v1::ListHistoryResponse> answer =
      ListHistory(view->session, ReadRequest(filter), *ParseCount(filter.limit));
  if (!answer.ok()) return Report(answer.status());
  const absl::Status shown = Show(globals, *answer, [&] { return ForPeople(*answer, view->sight, now); });
  PrintMissing(*answer, filter);
  return Report(shown);
}

}  // namespace

void AddHistory(Command app, const Globals& globals) {
  const Command verb =
      app.AddSubcommand("history", "Show present and past leases: permits, blocks, reservations and plans");
  const auto filter = std::make_shared<HistoryFilter>();
  verb.AddOption("--since", &filter->since,
                 "Only leases that were in use at this time or later: an age (2h, 1d), or a time: today, a date, a "
                 "time as shown (local unless it has a zone), or @ and seconds since 1970")
      .Parses(&ParseSince);
  verb.AddOption("--until", &filter->until,
                 "Only leases that were in use at this time or earlier, as in --since (default: now)")
      .Parses(&ParseUntil);
  verb.AddOption("--pool", &filter->pool, "Only this pool");
  verb.AddOption("--kind", &filter->kind, "Only this kind: permit, block, reservation or plan")
      .Parses(&ParseKind);
  verb.AddOption("--limit", &filter->limit, "The number of leases to show, counted from the latest")
      .Parses(&ParseCount)
      .ShowDefault();
  verb.Runs([&globals, filter]() -> ExitStatus {
    if (const absl::Status order = CheckOrder(*filter); !order.ok()) {
      Report(order);
      return {.code = kUsage};
    }
    return PrintHistory(globals, *filter);
  });
}

}  // namespace berth::cli
