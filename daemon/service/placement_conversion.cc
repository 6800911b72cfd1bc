#include "daemon/service/placement_conversion.h"

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/error.h"
#include "common/label.h"
#include "common/status_macros.h"

namespace berth::service {
namespace {

// The core's enum carries the wire's numbers.
static_assert(static_cast<int>(core::DevicePick::kRoundRobin) == v1::DeviceWish::ROUND_ROBIN);

}  // namespace

absl::StatusOr<core::DeviceWish> FromProto(absl::string_view field, const v1::DeviceWish& wish) {
  const std::string uuid = absl::StrCat(field, ".uuid"), pick = absl::StrCat(field, ".pick");
  BERTH_RETURN_IF_ERROR(ValidateLabel(uuid, wish.uuid()));
  BERTH_RETURN_IF_ERROR(ValidateLabel(absl::StrCat(field, ".island_of"), wish.island_of()));
  const auto refuse = [](absl::string_view what, const absl::AlphaNum& value, absl::string_view expected) {
    return Refuse(Reason::kInvalidField, "{field}: \"{value}\"; expected {limit}",
                  {{"field", what}, {"value", std::string(value.Piece())}, {"limit", expected}});
  };
  const bool named = wish.pick() == v1::DeviceWish::NAMED;
  if (wish.pick() < v1::DeviceWish::PICK_UNSPECIFIED || wish.pick() > v1::DeviceWish::ROUND_ROBIN) {
    return refuse(pick, static_cast<int>(wish.pick()), "0 to 5");
  }
  if (named == wish.uuid().empty()) return refuse(uuid, wish.uuid(), "a UUID with NAMED, and only then");
  const bool asks = wish.min_free_bytes() != 0 || wish.declared_bytes() != 0 || wish.min_capability() != 0 ||
                    !wish.island_of().empty();
  if (wish.pick() == v1::DeviceWish::PICK_UNSPECIFIED && asks) {
    return refuse(pick, 0, "a pick where something is asked of the device");
  }
  return core::DeviceWish{.pick = static_cast<core::DevicePick>(wish.pick()),
                          .uuid = wish.uuid(),
                          .min_free = Bytes(wish.min_free_bytes()),
                          .declared = Bytes(wish.declared_bytes()),
                          .min_capability = wish.min_capability(),
                          .island_of = wish.island_of()};
}

std::string NameOf(const core::DeviceWish& wish) {
  switch (wish.pick) {
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
  return wish.uuid;
}

}  // namespace berth::service
