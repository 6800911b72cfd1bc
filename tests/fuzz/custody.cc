// What vault and broker say to each other, to either of them.

#include <chrono>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/fd_passing.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/custody.h"
#include "daemon/vault/custody_wire.h"
#include "daemon/vault/estate.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/messages.h"

namespace berth::fuzz {
namespace {

using custody::MessageKind;

// The vault reads a broker.
void ReadBroker(UniqueFd socket) {
  BrokerLink link(std::move(socket));
  while (link.Read().ok()) {
  }
}

// A broker begins, and goes on.
void ReadVault(UniqueFd socket) {
  absl::StatusOr<Inheritance> inherited = Custody::Receive(std::move(socket));
  if (!inherited.ok()) return;
  while (inherited->custody->ReadNotice().ok()) {
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string facts = AsInput(BytesOf(custody::Facts{.device_count = 1, .node = 1, .custody_limit = 64}));
  custody::GiveMessage give;
  give.keys[0] = custody::KeyOf(custody::Listener::kBerthd);
  give.keys[1] = custody::KeyOf(custody::Kind::kStatePage);
  const std::string given = AsInput(BytesOf(give), 2);
  const std::string end = AsInput(BytesOf(custody::Signal{.kind = MessageKind::kGiveEnd}));
  const custody::Key block = custody::KeyOf(custody::Kind::kBlock, 7);
  const std::string status = AsInput(BytesOf(custody::WorkerStatus{.restarts_left = 3, .generation = 1}));
  const std::string dropped = AsInput(BytesOf(custody::KeyMessage{.kind = MessageKind::kDropped, .key = block}));
  const std::string put = AsInput(BytesOf(custody::KeyMessage{.kind = MessageKind::kPut, .key = block}), 1);
  const std::string drop = AsInput(BytesOf(custody::KeyMessage{.kind = MessageKind::kDrop, .key = block}));
  const std::string ready = AsInput(BytesOf(custody::Signal{.kind = MessageKind::kReady}));
  const std::string order = AsInput(BytesOf(custody::Order{.order = custody::OrderKind::kRestart}));
  return {"\1" + put + drop + ready + order, "\2" + facts + given + end + status + dropped,
          "\3" + facts + given + status + end};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth;
  if (size == 0) return 0;
  UniqueFd socket = fuzz::SocketWith({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (data[0] % 3 == 1) fuzz::ReadBroker(std::move(socket));
  if (data[0] % 3 == 2) fuzz::ReadVault(std::move(socket));
  if (data[0] % 3 == 0) ReceiveEstate(socket.get(), std::chrono::steady_clock::now()).status().IgnoreError();
  return 0;
}
