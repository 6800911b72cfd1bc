// The daemon's messages to a process on its channel.

#include <memory>
#include <utility>

#include "client/sdk/fences/fences.h"
#include "client/sdk/transport/side_channel.h"
#include "common/notification.h"
#include "common/wire/attach_wire.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/messages.h"

namespace berth::fuzz {

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  std::string all;
  uint64_t number = 0;
  for (uint32_t what = 1; what <= 14; ++what) {
    const auto kind = static_cast<attach::DeliveryKind>(what);
    const bool fd = kind == attach::DeliveryKind::kBlock || kind == attach::DeliveryKind::kOwnPage ||
                    kind == attach::DeliveryKind::kForeignPage || kind == attach::DeliveryKind::kModule ||
                    kind == attach::DeliveryKind::kModulePlace;
    attach::Delivery delivery = {.what = kind, .number = 1, .sequence = 1, .block = 1, .import = 1};
    seeds.push_back(AsInput(BytesOf(delivery), fd ? 1 : 0));
    delivery.number = ++number;
    all += AsInput(BytesOf(delivery), fd ? 1 : 0);
  }
  seeds.push_back(all + AsInput(BytesOf(attach::Resumed{})));
  seeds.push_back(AsInput(BytesOf(attach::Answer{.number = 1}).substr(0, attach::Answer::BytesOf(0))));
  seeds.push_back(AsInput(BytesOf(attach::Answer{.number = 1, .bytes = attach::Answer::kMaxBytes})));
  return seeds;
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth;
  const UniqueFd socket = fuzz::SocketWith({reinterpret_cast<const char*>(data), size});
  internal::Fences fences;
  Notification lost;
  auto channel = internal::SideChannel::Start(
      socket.get(), &fences,
      {.on_lost = [&lost](const absl::Status&) { lost.Notify(); }, .on_resumed = [] {}, .on_return = [] {}});
  if (!channel.ok()) return 0;
  (*channel)->Expect(1);
  lost.WaitForNotification();
  (*channel)->Abandon(1);
  return 0;
}
