#include "daemon/service/conversion/conversion.h"

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "daemon/broker/node_clock.h"

namespace berth::service {
namespace {

// Range of google.protobuf.Duration.
constexpr int64_t kMaxDurationSeconds = 315'576'000'000;

// The core's enums have the wire's numbers.
static_assert(static_cast<int>(core::SessionState::kEnding) == v1::Session::ENDING);
static_assert(static_cast<int>(core::ForgetOutcome::kNothingToDo) ==
              v1::ForgetRequestResponse::NOTHING_TO_DO);

}  // namespace

absl::StatusOr<absl::Duration> FromProto(absl::string_view field,
                                         const google::protobuf::Duration& duration) {
  if (duration.seconds() < 0 || duration.nanos() < 0 || duration.nanos() > 999'999'999 ||
      duration.seconds() > kMaxDurationSeconds) {
    return Refuse(Reason::kInvalidField, "{field}: {value} is not a duration from 0 to {limit}",
                  {{"field", field},
                   {"value", absl::StrCat(duration.seconds(), "s ", duration.nanos(), "ns")},
                   {"limit", absl::StrCat(kMaxDurationSeconds, "s")}});
  }
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

void ToProto(absl::Duration duration, google::protobuf::Duration* out) {
  const int64_t seconds = absl::IDivDuration(duration, absl::Seconds(1), &duration);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
}

void ToProto(absl::Time time, google::protobuf::Timestamp* out) { WallToProto(NodeClock::Real().ToWall(time), out); }

void WallToProto(absl::Time wall, google::protobuf::Timestamp* out) {
  const int64_t seconds = absl::ToUnixSeconds(wall);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(wall - absl::FromUnixSeconds(seconds))));
}

void ToProto(const core::Tenant& tenant, v1::Tenant* out) {
  out->set_uid(tenant.uid);
  out->set_container(tenant.container);
}

void ToProto(const core::ProcessInfo& process, v1::Process* out) {
  out->set_pid(process.pid);
  out->set_uid(process.uid);
  out->set_gid(process.gid);
  out->set_name(process.name);
}

core::RequestTag FromProto(const v1::RequestTag& tag) {
  return {.sequence = tag.sequence(),
          .answered_below = tag.answered_below(),
          .open = {tag.open().begin(), tag.open().end()},
          .takes_up = tag.takes_up()};
}

void ToProto(const core::SessionView& view, v1::Session* out) {
  out->set_id(view.id.value());
  ToProto(view.tenant, out->mutable_tenant());
  out->set_label(view.label);
  out->set_state(static_cast<v1::Session::State>(view.state));
  ToProto(view.opened_at, out->mutable_create_time());
  ToProto(view.opener, out->mutable_opener());
  for (const core::ProcessInfo& process : view.processes) ToProto(process, out->add_processes());
  out->set_permit_units(view.permit_units);
  out->set_waiters(view.waiters);
  out->set_live_bytes(view.live.count());
}

void ToProto(const core::DrainResult& result, v1::StopNodeResponse* out) {
  out->set_sessions(result.out.sessions);
  out->set_units(result.out.units);
  out->set_blocks(result.out.blocks);
  out->set_bytes(result.out.bytes.count());
}

}  // namespace berth::service
