#include "client/cli/history.h"

#include <stdio.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/history.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

using Lease = v1::HistoryLease;

struct Wish {
  std::string since;
  std::string until;
  std::string pool;
  std::string kind;
  std::string limit = "100";
};

std::string Words(const std::string& name) {
  return absl::AsciiStrToLower(absl::StrReplaceAll(name, {{"_", " "}}));
}

// "2h" is two hours ago.
absl::Status ReadTime(const std::string& text, absl::Time now, google::protobuf::Timestamp* out) {
  absl::Time time;
  std::string error;
  if (const absl::StatusOr<absl::Duration> ago = ParseWait(text); ago.ok()) {
    time = now - *ago;
  } else if (!absl::ParseTime(absl::RFC3339_full, text, &time, &error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is neither a while ago such as 2h nor a time such as 2026-03-01T10:00:00Z"));
  }
  out->set_seconds(absl::ToUnixSeconds(time));
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(out->seconds()))));
  return absl::OkStatus();
}

absl::StatusOr<v1::ListHistoryRequest> ReadRequest(const Wish& wish, absl::Time now) {
  v1::ListHistoryRequest request;
  if (!wish.since.empty()) BERTH_RETURN_IF_ERROR(ReadTime(wish.since, now, request.mutable_since()));
  if (!wish.until.empty()) BERTH_RETURN_IF_ERROR(ReadTime(wish.until, now, request.mutable_until()));
  request.set_pool(wish.pool);
  Lease::Kind kind = Lease::KIND_UNSPECIFIED;
  if (!wish.kind.empty() && !Lease::Kind_Parse(absl::AsciiStrToUpper(wish.kind), &kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", wish.kind, "\" is none of permit, block, reservation and plan"));
  }
  request.set_kind(kind);
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

std::string ForPeople(const v1::ListHistoryResponse& answer, absl::Time now) {
  if (answer.leases().empty()) return "no leases\n";
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
  // As things happened.
  for (int i = answer.leases_size() - 1; i >= 0; --i) {
    const Lease& lease = answer.leases(i);
    const absl::Time granted =
        absl::FromUnixSeconds(lease.grant_time().seconds()) + absl::Nanoseconds(lease.grant_time().nanos());
    const bool out = lease.end() == Lease::END_UNSPECIFIED;
    table.AddRow({absl::FormatTime("%Y-%m-%d %H:%M:%S", granted, absl::LocalTimeZone()),
                  Words(Lease::Kind_Name(lease.kind())), absl::StrCat(lease.id()), Amount(lease),
                  absl::StrJoin(lease.device_uuids(), ","), FormatTenant(lease.tenant()),
                  lease.has_process() ? FormatProcess(lease.process()) : "", FormatDuration(lease.waited()),
                  Held(lease, now), out ? "out" : Words(Lease::End_Name(lease.end())), lease.label()});
  }
  return table.Format();
}

// What is missing from it, for who may take it for the whole of it.
void TellMissing(const v1::ListHistoryResponse& answer, const Wish& wish) {
  if (!answer.fault().empty()) ::fprintf(stderr, "berth history: nothing is written now: %s\n", answer.fault().c_str());
  if (answer.unwritten_total() > 0) {
    ::fprintf(stderr, "berth history: %llu grants and ends are not in the history, whose disk was slow or full\n",
              static_cast<unsigned long long>(answer.unwritten_total()));
  }
  if (!answer.next_page_token().empty()) {
    ::fprintf(stderr, "berth history: these are the last %s; --limit shows more\n", wish.limit.c_str());
  }
}

ExitStatus Tell(const Globals& globals, const Wish& wish) {
  const absl::Time now = absl::Now();
  const absl::StatusOr<v1::ListHistoryRequest> request = ReadRequest(wish, now);
  const absl::StatusOr<uint64_t> limit = ParseCount(wish.limit);
  if (!request.ok() || !limit.ok()) {
    Report(request.ok() ? limit.status() : request.status());
    return {.code = kUsage};
  }
  const absl::StatusOr<std::shared_ptr<Session>> session = OpenFor(globals, /*admin=*/false);
  if (!session.ok()) return Report(session.status());
  const absl::StatusOr<v1::ListHistoryResponse> answer = ListHistory(*session, *request, *limit);
  if (!answer.ok()) return Report(answer.status());
  const absl::Status shown = Show(globals, *answer, [&] { return ForPeople(*answer, now); });
  TellMissing(*answer, wish);
  return Report(shown);
}

}  // namespace

void AddHistory(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand(
      "history", "Show who had what, when and for how long: permits, blocks, reservations and plans");
  const auto wish = std::make_shared<Wish>();
  verb->add_option("--since", wish->since,
                   "What was out at some time from then on: a while ago (2h), or a time (2026-03-01T10:00:00Z)");
  verb->add_option("--until", wish->until, "And until then");
  verb->add_option("--pool", wish->pool, "Of this pool alone");
  verb->add_option("--kind", wish->kind, "Of this kind alone: permit, block, reservation or plan");
  verb->add_option("--limit", wish->limit, "The last so many")->capture_default_str();
  verb->callback([&globals, chosen, wish] { *chosen = [&globals, wish] { return Tell(globals, *wish); }; });
}

}  // namespace berth::cli
