#include "daemon/service/conversion/history_conversion.h"

#include <string>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "berth/v1/history.pb.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/page.h"

namespace berth::service {
namespace {

// The core's enums have the wire's numbers.
static_assert(static_cast<int>(core::LeaseKind::kPermit) == v1::HistoryLease::PERMIT);
static_assert(static_cast<int>(core::LeaseKind::kPlan) == v1::HistoryLease::PLAN);
static_assert(static_cast<int>(core::LeaseEnd::kReleased) == v1::HistoryLease::RELEASED);
static_assert(static_cast<int>(core::LeaseEnd::kNotTakenUp) == v1::HistoryLease::NOT_TAKEN_UP);

// Range of google.protobuf.Timestamp.
constexpr int64_t kLeastSeconds = -62'135'596'800;
constexpr int64_t kMostSeconds = 253'402'300'799;

absl::StatusOr<absl::Time> ReadTime(absl::string_view field, const google::protobuf::Timestamp& time) {
  if (time.seconds() < kLeastSeconds || time.seconds() > kMostSeconds || time.nanos() < 0 ||
      time.nanos() > 999'999'999) {
    return Refuse(
        Reason::kInvalidField, "invalid {field} {value}: expected a time from the year 1 to {limit}",
        {{"field", field}, {"value", absl::StrCat(time.seconds(), "s ", time.nanos(), "ns")}, {"limit", "9999"}});
  }
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

}  // namespace

absl::StatusOr<HistoryQuery> FromProto(const v1::ListHistoryRequest& request, const core::Caller& caller) {
  BERTH_ASSIGN_OR_RETURN(const core::PageRequest page, ReadPage(request.page_size(), request.page_token()));
  HistoryQuery query = {.pool = request.pool(), .rows = page.rows};
  // Numbers start at 1.
  if (page.after != 0) query.before = page.after;
  if (!caller.sees_all()) query.tenant = caller.tenant;
  if (!request.pool().empty()) BERTH_RETURN_IF_ERROR(ValidateLabel("pool", request.pool()));
  if (request.has_since()) {
    BERTH_ASSIGN_OR_RETURN(query.since, ReadTime("since", request.since()));
  }
  if (request.has_until()) {
    BERTH_ASSIGN_OR_RETURN(query.until, ReadTime("until", request.until()));
  }
  if (request.kind() == v1::HistoryLease::KIND_UNSPECIFIED) return query;
  if (!v1::HistoryLease::Kind_IsValid(request.kind())) {
    return Refuse(Reason::kInvalidField, "invalid {field} {value}: expected a kind from 1 to {limit}",
                  {{"field", "kind"}, {"value", static_cast<int>(request.kind())}, {"limit", v1::HistoryLease::PLAN}});
  }
  query.kind = static_cast<core::LeaseKind>(request.kind());
  return query;
}

void ToProto(const HistoryLease& past, v1::HistoryLease* out) {
  const core::LeaseRecord& lease = past.lease;
  out->set_number(past.number);
  out->set_incarnation(past.incarnation);
  out->set_kind(static_cast<v1::HistoryLease::Kind>(lease.kind));
  out->set_id(lease.id);
  out->set_session(lease.session.value());
  ToProto(lease.tenant, out->mutable_tenant());
  if (lease.process.pid != 0 || !lease.process.name.empty()) {
    out->mutable_process()->set_pid(lease.process.pid);
    out->mutable_process()->set_name(lease.process.name);
    out->mutable_process()->set_uid(lease.tenant.uid);
  }
  out->set_label(lease.label);
  out->set_pool(lease.pool);
  out->set_units(lease.units);
  out->set_bytes(lease.bytes.count());
  for (const absl::string_view device : absl::StrSplit(lease.devices, ',', absl::SkipEmpty())) {
    out->add_device_uuids(std::string(device));
  }
  WallToProto(lease.granted_at, out->mutable_grant_time());
  ToProto(lease.waited, out->mutable_waited());
  out->set_end(static_cast<v1::HistoryLease::End>(lease.end));
  if (!past.end_seen) return;
  WallToProto(lease.ended_at, out->mutable_end_time());
  ToProto(lease.held, out->mutable_held());
}

void ToProto(const core::Page<HistoryLease>& page, v1::ListHistoryResponse* out) {
  for (const HistoryLease& past : page) ToProto(past, out->add_leases());
  out->set_next_page_token(NextPageToken(page));
}

}  // namespace berth::service
