// The messages between broker and worker, in both directions.

#include <optional>
#include <utility>

#include <berth/bytes.h>

#include "daemon/device/memory/host_backend.h"
#include "daemon/device/worker/worker.h"
#include "daemon/device/worker/worker_channel.h"
#include "daemon/device/worker/worker_wire.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/messages.h"

namespace berth::fuzz {
namespace {

// The broker reads a worker's messages.
void ReadWorker(UniqueFd socket) {
  WorkerChannel channel(std::move(socket));
  while (channel.Read().ok()) {
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string begin = AsInput(BytesOf(worker::Begin{.epoch = 1}));
  const std::string create = AsInput(BytesOf(worker::Create{.block = 1, .bytes = uint64_t{2} << 20}));
  const std::string hold = AsInput(BytesOf(worker::BlockMessage{.kind = worker::Kind::kHold, .block = 1}), 1);
  const std::string release = AsInput(BytesOf(worker::BlockMessage{.kind = worker::Kind::kRelease, .block = 1}));
  const std::string created = AsInput(BytesOf(worker::Created{.block = 1}), 1);
  worker::Created refusal = {.block = 2};
  worker::SetStatus(absl::ResourceExhaustedError("no memory"), &refusal.outcome);
  worker::Created unknown = refusal;
  unknown.outcome.reason = 1'000;
  const std::string begun = AsInput(BytesOf(worker::Begun{.epoch = 1, .context_bytes = 1}));
  const std::string retained = AsInput(BytesOf(worker::BlockMessage{.kind = worker::Kind::kRetained, .block = 1}));
  const std::string released = AsInput(BytesOf(worker::Released{.block = 1}));
  const std::string answers =
      retained + begun + created + AsInput(BytesOf(refusal)) + AsInput(BytesOf(unknown)) + released;
  return {"\1" + answers, "\2" + begin + create + hold + release, "\3" + begin + create + release};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth;
  if (size == 0) return 0;
  UniqueFd socket = fuzz::SocketWith({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (data[0] % 3 == 1) {
    fuzz::ReadWorker(std::move(socket));
  } else {
    HostBackend memory("HOST-0", MiB(64));
    ServeWorker(socket.get(), memory, data[0] % 3 == 2 ? std::nullopt : std::make_optional(Bytes(1)))
        .status()
        .IgnoreError();
  }
  return 0;
}
