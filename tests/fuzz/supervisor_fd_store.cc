// The messages between supervisor and broker, in both directions.

#include <chrono>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/os/fd_passing.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"
#include "daemon/supervisor/handover_state.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/messages.h"

namespace berth::fuzz {
namespace {

using fd_store::MessageKind;

// The supervisor reads a broker's messages.
void ReadBroker(UniqueFd socket) {
  BrokerLink link(std::move(socket));
  while (link.Read().ok()) {
  }
}

// A broker receives its state, and continues to read.
void ReadSupervisor(UniqueFd socket) {
  absl::StatusOr<Inheritance> inherited = SupervisorFdStore::Receive(std::move(socket));
  if (!inherited.ok()) return;
  while (inherited->fd_store->ReadNotice().ok()) {
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string facts = AsInput(BytesOf(fd_store::Facts{.device_count = 1, .node = 1, .fd_store_limit = 64}));
  fd_store::GiveMessage give;
  give.keys[0] = fd_store::KeyOf(fd_store::Listener::kBerthd);
  give.keys[1] = fd_store::KeyOf(fd_store::Kind::kStatePage);
  const std::string given = AsInput(BytesOf(give), 2);
  const std::string end = AsInput(BytesOf(fd_store::Signal{.kind = MessageKind::kGiveEnd}));
  const fd_store::Key block = fd_store::KeyOf(fd_store::Kind::kBlock, 7);
  const std::string status = AsInput(BytesOf(fd_store::WorkerStatus{.restarts_left = 3, .generation = 1}));
  const std::string dropped = AsInput(BytesOf(fd_store::KeyMessage{.kind = MessageKind::kDropped, .key = block}));
  const std::string put = AsInput(BytesOf(fd_store::KeyMessage{.kind = MessageKind::kPut, .key = block}), 1);
  const std::string drop = AsInput(BytesOf(fd_store::KeyMessage{.kind = MessageKind::kDrop, .key = block}));
  const std::string ready = AsInput(BytesOf(fd_store::Signal{.kind = MessageKind::kReady}));
  const std::string command = AsInput(BytesOf(fd_store::CommandMessage{.command = WorkerCommand::kRestart}));
  return {"\1" + put + drop + ready + command, "\2" + facts + given + end + status + dropped,
          "\3" + facts + given + status + end};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth;
  if (size == 0) return 0;
  UniqueFd socket = fuzz::SocketWith({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (data[0] % 3 == 1) fuzz::ReadBroker(std::move(socket));
  if (data[0] % 3 == 2) fuzz::ReadSupervisor(std::move(socket));
  if (data[0] % 3 == 0) ReceiveHandoverState(socket.get(), std::chrono::steady_clock::now()).status().IgnoreError();
  return 0;
}
