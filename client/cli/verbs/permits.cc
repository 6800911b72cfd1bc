#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/permit.pb.h"
#include "client/cli/format.h"
#include "client/cli/table.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"
#include "common/time_span.h"

namespace berth::cli {
namespace {

struct Options {
  std::string pool;
  // A count, or "default".
  std::string cap;
  std::optional<uint64_t> tenant_cap;
  std::string ageing;
  std::string hold_warning;
  std::string hold_limit;
  std::string idle_warning;
  // USER=WEIGHT.
  std::vector<std::string> weights;
  std::optional<uint64_t> no_device_cap;
  // N, DEVICE=N, or DEVICE= to remove the device's cap.
  std::vector<std::string> device_caps;
  std::string permit;
};

// "2", "2 exclusive".
std::string FormatUnits(uint64_t units, bool exclusive) {
  return absl::StrCat(units, exclusive ? " exclusive" : "");
}

// "3m12s", "3m12s stopped", "3m12s overdue", "3m12s idle 1m", "3m12s cached".
std::string FormatHeld(const v1::Permit& permit, absl::Time now) {
  return absl::StrCat(FormatSince(permit.grant_time(), now), permit.stopped() ? " stopped" : "",
                      permit.overdue() ? " overdue" : "",
                      permit.has_idle() ? absl::StrCat(" idle ", FormatDuration(permit.idle())) : "",
                      permit.kept() ? " cached" : "");
}

// Returns a line if the list of waiters is cut; empty if it is complete.
std::string Omitted(const v1::ListPermitsResponse& answer) {
  uint64_t waiters = 0;
  for (const v1::PoolUse& pool : answer.pools()) waiters += pool.visible_waiters();
  const auto listed = static_cast<uint64_t>(answer.waiters_size());
  return waiters > listed ? absl::StrCat("the list shows ", listed, " of ", waiters, " waiters\n") : "";
}

// Returns one line for each pool with units or waiters that the caller may not see; empty if there are none.
std::string Others(const v1::ListPermitsResponse& answer) {
  std::string text;
  for (const v1::PoolUse& pool : answer.pools()) {
    const uint64_t units = pool.out() - pool.visible_out();
    const uint64_t waiters = pool.waiters() - pool.visible_waiters();
    if (units == 0 && waiters == 0) continue;
    absl::StrAppend(&text, "pool ", pool.pool(), ": ", units, " of ", pool.cap(), " units are held by other tenants",
                    waiters == 0 ? "" : absl::StrCat(", and ", waiters, " of their requests wait"), "\n");
  }
  return text;
}

// `pool`: the only pool of the answer; empty for all pools.
std::string ForPeople(const v1::ListPermitsResponse& answer, Sight sight, const std::string& pool, absl::Time now) {
  Table holders({{"PERMIT", Table::Align::kRight},
                 {"POOL"},
                 {"UNITS", Table::Align::kRight},
                 {"DEPTH", Table::Align::kRight},
                 {"HELD", Table::Align::kRight},
                 {"WAITED", Table::Align::kRight},
                 {"AT WORK", Table::Align::kRight},
                 {"SESSION"},
                 {"PROCESS"},
                 {"DEVICE"},
                 {"DECLARED", Table::Align::kRight},
                 {"LABEL"}});
  for (const v1::Permit& permit : answer.permits()) {
    holders.AddRow({absl::StrCat(permit.id()), permit.pool(), FormatUnits(permit.units(), permit.exclusive()),
                    absl::StrCat(permit.depth()), FormatHeld(permit, now), FormatDuration(permit.waited()),
                    permit.has_utilisation() ? absl::StrCat(permit.utilisation(), " %") : "-",
                    absl::StrCat(permit.session()), FormatProcess(permit.process()), permit.device().uuid(),
                    permit.declared_bytes() == 0 ? "" : FormatCount(permit.declared_bytes()),
                    permit.label()});
  }
  Table waiters({{"WAITER", Table::Align::kRight},
                 {"POOL"},
                 {"POSITION", Table::Align::kRight},
                 {"PRIORITY", Table::Align::kRight},
                 {"UNITS", Table::Align::kRight},
                 {"WAITING", Table::Align::kRight},
                 {"SESSION"},
                 {"PROCESS"},
                 {"LABEL"}});
  for (const v1::Waiter& waiter : answer.waiters()) {
    waiters.AddRow({absl::StrCat(waiter.number()), waiter.pool(), absl::StrCat(waiter.position()),
                    absl::StrCat(waiter.priority()), FormatUnits(waiter.units(), waiter.exclusive()),
                    absl::StrCat(FormatSince(waiter.wait_start_time(), now), waiter.stopped() ? " stopped" : ""),
                    absl::StrCat(waiter.session()),
                    FormatProcess(waiter.process()), waiter.label()});
  }
  const std::string none = absl::StrCat("no permits ", pool.empty() ? "" : absl::StrCat("of pool ", pool, " "),
                                        sight == Sight::kAll ? "are out\n" : "of yours are out\n");
  return absl::StrCat(holders.empty() ? none : holders.Format(),
                      waiters.empty() ? "" : absl::StrCat("\n", waiters.Format()), Omitted(answer), Others(answer),
                      LacksOthers(sight));
}

ExitStatus List(const Globals& globals, const Options& options) {
  return Look(globals, [&](const Inspector& inspector, Sight sight) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::ListPermitsResponse answer, inspector.ListPermits(options.pool));
    return Show(globals, answer, [&] { return ForPeople(answer, sight, options.pool, absl::Now()); });
  });
}

constexpr uint32_t kMostWeight = 1000;

// Parses a time after which a permit is shown or revoked, or "never", which is zero.
absl::StatusOr<absl::Duration> ParseLimit(const std::string& text) {
  if (text == "never") return absl::ZeroDuration();
  const absl::StatusOr<absl::Duration> time = ParseTimeSpan(text);
  if (!time.ok()) return absl::InvalidArgumentError(absl::StrCat(time.status().message(), ", or never"));
  if (*time >= absl::Seconds(1)) return time;
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a time of at least 1s, or never"));
}

// Stores the time in `text` if that is not empty.
template <typename Parse>
void ReadTime(const std::string& text, Parse parse, google::protobuf::Duration* (v1::SetPoolRequest::*field)(),
              v1::SetPoolRequest* change) {
  if (text.empty()) return;
  const absl::Duration time = *parse(text);
  google::protobuf::Duration* const out = (change->*field)();
  absl::Duration rest;
  out->set_seconds(absl::IDivDuration(time, absl::Seconds(1), &rest));
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

absl::Status ReadDeviceCap(const std::string& text, v1::SetPoolRequest* change) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  uint64_t cap = 0;
  const bool without = parts.size() == 2 && parts[1].empty();
  const bool unnamed = parts.size() == 2 && parts[0].empty();
  if (unnamed || (!without && (parts.back().find('-') == 0 || !absl::SimpleAtoi(parts.back(), &cap)))) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not N, DEVICE=N or DEVICE="));
  }
  if (parts.size() == 1) {
    change->set_device_cap(cap);
    return absl::OkStatus();
  }
  v1::DeviceCap* const to = change->add_device_caps();
  to->set_uuid(parts[0]);
  if (!without) to->set_cap(cap);
  return absl::OkStatus();
}

absl::StatusOr<v1::TenantWeight> ParseWeight(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '=');
  uint32_t weight = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &weight)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not USER=WEIGHT"));
  }
  if (weight < 1 || weight > kMostWeight) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": ", weight, " is not a weight from 1 to ", kMostWeight));
  }
  BERTH_ASSIGN_OR_RETURN(const uint32_t uid, ParseUser(parts[0]));
  v1::TenantWeight out;
  out.set_uid(uid);
  out.set_weight(weight);
  return out;
}

v1::SetPoolRequest MakeChange(const Options& options) {
  v1::SetPoolRequest change;
  change.set_pool(options.pool);
  if (options.cap == "default") {
    change.set_defaults(true);
  } else if (!options.cap.empty()) {
    change.set_cap(*ParseCount(options.cap));
  }
  if (options.no_device_cap.has_value()) change.set_no_device_cap(*options.no_device_cap);
  if (options.tenant_cap.has_value()) change.set_tenant_cap(*options.tenant_cap);
  ReadTime(options.ageing, &ParseTimeSpan, &v1::SetPoolRequest::mutable_ageing, &change);
  ReadTime(options.hold_warning, &ParseLimit, &v1::SetPoolRequest::mutable_hold_warning, &change);
  ReadTime(options.hold_limit, &ParseLimit, &v1::SetPoolRequest::mutable_hold_limit, &change);
  ReadTime(options.idle_warning, &ParseLimit, &v1::SetPoolRequest::mutable_idle_warning, &change);
  for (const std::string& text : options.weights) *change.add_weights() = *ParseWeight(text);
  for (const std::string& text : options.device_caps) ReadDeviceCap(text, &change).IgnoreError();
  return change;
}

// Formats the pool's settings, and its units in use.
std::string DescribePool(const v1::Pool& pool) {
  std::vector<std::string> parts = {absl::StrCat("cap ", pool.cap()), absl::StrCat("out ", pool.out()),
                                    absl::StrCat("ageing ", FormatDuration(pool.ageing()))};
  if (pool.no_device_cap() > 0) {
    parts.push_back(absl::StrCat("without a device ", pool.out_without_device(), " of ", pool.no_device_cap()));
  }
  if (pool.device_cap() > 0) parts.push_back(absl::StrCat("device cap ", pool.device_cap()));
  for (const v1::DeviceCap& cap : pool.device_caps()) {
    parts.push_back(absl::StrCat("on ", cap.uuid(), " ", cap.cap()));
  }
  if (pool.tenant_cap() > 0) parts.push_back(absl::StrCat("tenant cap ", pool.tenant_cap()));
  if (pool.has_hold_warning())
    parts.push_back(absl::StrCat("hold warning ", FormatDuration(pool.hold_warning())));
  if (pool.has_hold_limit()) parts.push_back(absl::StrCat("hold limit ", FormatDuration(pool.hold_limit())));
  if (pool.has_idle_warning())
    parts.push_back(absl::StrCat("idle warning ", FormatDuration(pool.idle_warning())));
  for (const v1::TenantWeight& weight : pool.weights()) {
    parts.push_back(absl::StrCat("uid ", weight.uid(), " weight ", weight.weight()));
  }
  return absl::StrCat("pool ", pool.name(), ": ", absl::StrJoin(parts, ", "), "\n");
}

ExitStatus Set(const Globals& globals, const Options& options) {
  const v1::SetPoolRequest change = MakeChange(options);
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::Pool pool, inspector.SetPool(change));
    ComplainOfUnsavedSettings(inspector);
    return Show(globals, pool, [&] { return DescribePool(pool); });
  });
}

ExitStatus Revoke(const Globals& globals, const Options& options) {
  const uint64_t permit = *ParseId(options.permit);
  return Inspect(globals, /*admin=*/true, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::Permit was, inspector.RevokePermit(PermitId(permit)));
    return Show(globals, was, [&] {
      return absl::StrCat("permit ", was.id(), ": ", was.units(), " of pool ", was.pool(), " revoked from ",
                          FormatProcess(was.process()), ", which continues to run\n");
    });
  });
}

}  // namespace

void AddPermits(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand("permits", "Show holders of permits and waiters");
  const auto options = std::make_shared<Options>();
  verb.AddOption("--pool", &options->pool, "Only this pool");
  const Command set =
      verb.AddSubcommand("set", "Change a pool while the daemon runs (operator); a lowered cap revokes no permit");
  set.AddOption("POOL", &options->pool, "The pool").Required();
  set.AddOption("CAP", &options->cap,
                "The most units in use at once, at least 1; \"default\" discards all changes by operators")
      .Check([](const std::string& text) { return text == "default" ? "" : CheckCount(text); });
  set.AddOption("--tenant-cap", &options->tenant_cap, "The most units in use by one tenant; 0: no limit").AtLeast(0);
  set.AddOption("--ageing", &options->ageing,
                "The wait after which a request counts as having the highest priority, e.g. 10m")
      .Parses(&ParseTimeSpan);
  set.AddOption("--hold-warning", &options->hold_warning,
                "The hold time after which a permit is shown as overdue, at least 1s; or never")
      .Parses(&ParseLimit);
  set.AddOption("--hold-limit", &options->hold_limit,
                "The hold time after which a permit is revoked, at least 1s; or never")
      .Parses(&ParseLimit);
  set.AddOption("--weight", &options->weights,
                "USER=WEIGHT: the weight of a user's (name or uid) tenants, 1 to 1000 (default: 1); may be repeated")
      .Parses(&ParseWeight);
  set.AddOption("--idle-warning", &options->idle_warning,
                "The time after which a permit with an inactive device is shown as idle, at least 1s; or never")
      .Parses(&ParseLimit);
  set.AddOption("--no-device-cap", &options->no_device_cap,
                "The most units of permits without a device; 0: no limit below the cap");
  set.AddOption("--device-cap", &options->device_caps,
                "N: the most units on each device, 0: no limit; DEVICE=N: on this device, by its ordinal, UUID or "
                "unique prefix; DEVICE=: as on the others; may be repeated")
      .Check([](const std::string& text) {
        v1::SetPoolRequest parsed;
        return std::string(ReadDeviceCap(text, &parsed).message());
      });
  const Command revoke =
      verb.AddSubcommand("revoke", "End a permit (operator); its holder's process is notified and not stopped");
  revoke.AddOption("PERMIT", &options->permit, "The permit's number in `berth permits`")
      .Check(CheckIdIn("permits"))
      .Required();
  verb.Runs([&globals, options, set, revoke] {
    const auto run = set.parsed() ? &Set : revoke.parsed() ? &Revoke : &List;
    return run(globals, *options);
  });
}

}  // namespace berth::cli
