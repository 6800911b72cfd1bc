#include "daemon/service/conversion/placement_conversion.h"

#include <optional>
#include <string>
#include <utility>

#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/ids.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/placement.pb.h"
#include "common/label.h"
#include "common/status_macros.h"

namespace berth::service {
namespace {

// The core's enum has the wire's numbers.
static_assert(static_cast<int>(core::DevicePick::kRoundRobin) == v1::DeviceWish::ROUND_ROBIN);

}  // namespace

absl::StatusOr<core::DeviceConstraint> FromProto(absl::string_view field, const v1::DeviceWish& constraint) {
  const std::string uuid = absl::StrCat(field, ".uuid"), pick = absl::StrCat(field, ".pick");
  BERTH_RETURN_IF_ERROR(ValidateLabel(uuid, constraint.uuid()));
  BERTH_RETURN_IF_ERROR(ValidateLabel(absl::StrCat(field, ".island_of"), constraint.island_of()));
  const auto refuse = [](absl::string_view what, const absl::AlphaNum& value, absl::string_view expected) {
    return Refuse(Reason::kInvalidField, "{field}: \"{value}\"; expected {limit}",
                  {{"field", what}, {"value", std::string(value.Piece())}, {"limit", expected}});
  };
  const bool named = constraint.pick() == v1::DeviceWish::NAMED;
  if (constraint.pick() < v1::DeviceWish::PICK_UNSPECIFIED || constraint.pick() > v1::DeviceWish::ROUND_ROBIN) {
    return refuse(pick, static_cast<int>(constraint.pick()), "0 to 5");
  }
  if (named == constraint.uuid().empty()) return refuse(uuid, constraint.uuid(), "a UUID with NAMED, and only then");
  if (constraint.among_size() > static_cast<int>(kMaxDeviceOrdinals)) {
    return refuse(absl::StrCat(field, ".among"), constraint.among_size(), absl::StrCat(kMaxDeviceOrdinals, " at most"));
  }
  for (const std::string& name : constraint.among()) {
    BERTH_RETURN_IF_ERROR(ValidateLabel(absl::StrCat(field, ".among"), name));
  }
  BERTH_ASSIGN_OR_RETURN(std::optional<std::string> visible, VisibleOf(constraint));
  const bool asks = constraint.min_free_bytes() != 0 || constraint.declared_bytes() != 0 ||
                    constraint.min_capability() != 0 || !constraint.island_of().empty() ||
                    constraint.among_size() > 0 || constraint.wait_for_device();
  if (constraint.pick() == v1::DeviceWish::PICK_UNSPECIFIED && asks) {
    return refuse(pick, 0, "a pick if the request has a device constraint");
  }
  return core::DeviceConstraint{.pick = static_cast<core::DevicePick>(constraint.pick()),
                                .uuid = constraint.uuid(),
                                .min_free = Bytes(constraint.min_free_bytes()),
                                .declared = Bytes(constraint.declared_bytes()),
                                .min_capability = constraint.min_capability(),
                                .island_of = constraint.island_of(),
                                .among = {constraint.among().begin(), constraint.among().end()},
                                .visible = std::move(visible),
                                .wait_for_device = constraint.wait_for_device()};
}

std::string NameOf(const core::DeviceConstraint& constraint) {
  switch (constraint.pick) {
    case core::DevicePick::kNone:
      return "";
    case core::DevicePick::kAny:
      return "any";
    case core::DevicePick::kBest:
      return "best";
    case core::DevicePick::kHighestScore:
      return "highest-score";
    case core::DevicePick::kRoundRobin:
      return "round-robin";
    case core::DevicePick::kNamed:
      break;
  }
  return constraint.uuid;
}

}  // namespace berth::service
