// Typed ids of Berth's objects: a session id cannot be passed where a block id is expected.

#ifndef BERTH_IDS_H_
#define BERTH_IDS_H_

#include <compare>
#include <cstdint>
#include <utility>

namespace berth {

// Id is a 64-bit name of one kind of object. 0 names nothing. Hashable, comparable, trivially copyable.
template <typename Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }
  constexpr explicit operator bool() const { return value_ != 0; }
  friend constexpr auto operator<=>(Id, Id) = default;
  template <typename H>
  friend H AbslHashValue(H state, Id id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  uint64_t value_ = 0;
};

using SessionId = Id<struct SessionTag>;
// A channel is one process of a session.
using ChannelId = Id<struct ChannelTag>;
using PermitId = Id<struct PermitTag>;
// One acquire; several nest in one permit.
using AcquisitionId = Id<struct AcquisitionTag>;
using BlockId = Id<struct BlockTag>;
using ImportId = Id<struct ImportTag>;
// One launch that uses blocks, from its prepare to its finish.
using UseId = Id<struct UseTag>;
// A reservation of bytes for future blocks.
using ReservationId = Id<struct ReservationTag>;
// A plan: how a session splits work over devices.
using PlanId = Id<struct PlanTag>;
// One attempt of one RPC inside the broker.
using CallId = Id<struct CallTag>;

// Device ordinals are node-local labels from 0.
inline constexpr uint32_t kMaxDeviceOrdinals = 64;

}  // namespace berth

#endif  // BERTH_IDS_H_
