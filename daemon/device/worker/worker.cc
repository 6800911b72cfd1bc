#include "daemon/device/worker/worker.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/driver_code.h"
#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/base/struct_message.h"
#include "daemon/device/worker/fault.h"
#include "daemon/device/worker/worker_wire.h"

namespace berth {
namespace {

// Serves one socket. Holds the blocks that the broker is freeing until every other fd of theirs is closed. Blocks
// exported by handles are held from their creation on.
class Worker {
 public:
  Worker(int socket, MemoryResource& resource, std::optional<Bytes> context)
      : socket_(socket), resource_(resource), context_(context) {}

  absl::StatusOr<WorkerEnd> Serve();

 private:
  // Create(), Release() and Begin() set `*outcome` to the driver's result, which was answered. Errors: those of the
  // socket.
  absl::Status Create(const worker::Create& create, absl::Status* outcome);
  // Makes a block, and sets those fields of `*created` that describe its export.
  absl::StatusOr<UniqueFd> Make(const worker::Create& create, worker::Created* created);
  absl::Status Hold(uint64_t block, UniqueFd fd);
  absl::Status Release(uint64_t block);
  // Releases the block and sends the result.
  absl::Status AnswerRelease(uint64_t block, absl::Status* outcome);
  absl::Status Begin(const worker::Begin& begin, absl::Status* outcome);

  const int socket_;
  MemoryResource& resource_;
  const std::optional<Bytes> context_;
  std::map<uint64_t, MemoryBlock> held_;
};

std::string TagOf(uint64_t block) { return absl::StrCat("block ", block); }

absl::StatusOr<UniqueFd> Worker::Make(const worker::Create& create, worker::Created* created) {
  // An earlier broker may have requested the block and died before the answer.
  if (const auto made = held_.find(create.block); made != held_.end() && made->second.handle.has_value()) {
    created->by_handle = 1;
    created->handle = *made->second.handle;
    return UniqueFd();
  }
  BERTH_ASSIGN_OR_RETURN(MemoryBlock block, resource_.Allocate(Bytes(create.bytes), TagOf(create.block)));
  if (!block.handle.has_value()) return resource_.HandOver(block);
  created->by_handle = 1;
  created->handle = *block.handle;
  held_.insert_or_assign(create.block, std::move(block));
  return UniqueFd();
}

absl::Status Worker::Create(const worker::Create& create, absl::Status* outcome) {
  worker::Created created = {.block = create.block};
  const absl::StatusOr<UniqueFd> fd = Make(create, &created);
  worker::SetStatus(fd.status(), &created.outcome);
  *outcome = fd.status();
  const int sent = fd.ok() ? fd->get() : -1;
  return SendStruct(socket_, created, sent >= 0 ? std::span<const int>(&sent, 1) : std::span<const int>());
}

absl::Status Worker::Hold(uint64_t block, UniqueFd fd) {
  // After a broker that died following its Hold, the next broker holds the same block again.
  BERTH_RETURN_IF_ERROR(Release(block));
  BERTH_ASSIGN_OR_RETURN(held_[block], resource_.Adopt(std::move(fd), TagOf(block)));
  return absl::OkStatus();
}

absl::Status Worker::Release(uint64_t block) {
  const auto held = held_.find(block);
  if (held == held_.end()) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(resource_.Deallocate(held->second));
  held_.erase(held);
  return absl::OkStatus();
}

absl::Status Worker::AnswerRelease(uint64_t block, absl::Status* outcome) {
  *outcome = Release(block);
  worker::Released answer = {.block = block};
  worker::SetStatus(*outcome, &answer.outcome);
  return SendStruct(socket_, answer);
}

absl::Status Worker::Begin(const worker::Begin& begin, absl::Status* outcome) {
  std::vector<uint64_t> fds;
  for (const auto& [id, block] : held_) {
    if (!block.handle.has_value()) {
      fds.push_back(id);
      continue;
    }
    BERTH_RETURN_IF_ERROR(SendStruct(socket_, worker::BlockMessage{.kind = worker::Kind::kRetained, .block = id}));
  }
  for (const uint64_t id : fds) {
    BERTH_RETURN_IF_ERROR(AnswerRelease(id, outcome));
    if (DirectiveOf(*outcome) != FaultDirective::kGoOn) return absl::OkStatus();
  }
  *outcome = absl::OkStatus();
  return SendStruct(
      socket_, worker::Begun{.epoch = begin.epoch, .context_bytes = context_.value_or(Bytes(0)).count()});
}

absl::StatusOr<WorkerEnd> Worker::Serve() {
  while (true) {
    absl::StatusOr<Message> message = ReceiveMessage(socket_);
    if (!message.ok()) {
      if (IsEndOfStream(message.status())) return WorkerEnd{};
      return message.status();
    }
    // The driver's result for the request.
    absl::Status outcome;
    if (const auto create = AsStruct<worker::Create>(*message, worker::Kind::kCreate, 0); create.has_value()) {
      BERTH_RETURN_IF_ERROR(Create(*create, &outcome));
    } else if (const auto hold = AsStruct<worker::BlockMessage>(*message, worker::Kind::kHold, 1);
               hold.has_value()) {
      BERTH_RETURN_IF_ERROR(Hold(hold->block, std::move(message->fds[0])));
    } else if (const auto release = AsStruct<worker::BlockMessage>(*message, worker::Kind::kRelease, 0);
               release.has_value()) {
      BERTH_RETURN_IF_ERROR(AnswerRelease(release->block, &outcome));
    } else if (const auto begin = AsStruct<worker::Begin>(*message, worker::Kind::kBegin, 0); begin.has_value()) {
      BERTH_RETURN_IF_ERROR(Begin(*begin, &outcome));
    } else {
      return absl::InternalError("the broker sent a message that breaks the worker's protocol");
    }
    if (const FaultDirective directive = DirectiveOf(outcome); directive != FaultDirective::kGoOn) {
      return WorkerEnd{.exit = ExitFor(directive), .fault = outcome};
    }
  }
}

}  // namespace

absl::StatusOr<WorkerEnd> ServeWorker(int socket, MemoryResource& resource, std::optional<Bytes> context) {
  return Worker(socket, resource, context).Serve();
}

// ---- fault.h -------------------------------------------------------------------------------------------------

FaultDirective DirectiveOf(int driver_code) {
  using cuda::DriverCode;
  switch (static_cast<DriverCode>(driver_code)) {
    case DriverCode::kInvalidValue:
    case DriverCode::kOutOfMemory:
    // The system refused a resource, such as an fd.
    case DriverCode::kOperatingSystem:
    case DriverCode::kNotReady:
    case DriverCode::kNotPermitted:
    case DriverCode::kNotSupported:
      return FaultDirective::kGoOn;
    case DriverCode::kNotInitialized:
    case DriverCode::kDeinitialized:
    case DriverCode::kIllegalAddress:
    case DriverCode::kLaunchTimeout:
    case DriverCode::kContextIsDestroyed:
    case DriverCode::kAssert:
    case DriverCode::kHardwareStackError:
    case DriverCode::kIllegalInstruction:
    case DriverCode::kMisalignedAddress:
    case DriverCode::kInvalidAddressSpace:
    case DriverCode::kInvalidPc:
    case DriverCode::kLaunchFailed:
    case DriverCode::kUnknown:
      return FaultDirective::kRestartWorker;
    case DriverCode::kSystemNotReady:
    case DriverCode::kSystemDriverMismatch:
      return FaultDirective::kStopDevice;
    case DriverCode::kDeviceUnavailable:
    case DriverCode::kNoDevice:
    case DriverCode::kInvalidDevice:
    case DriverCode::kEccUncorrectable:
    case DriverCode::kNvlinkUncorrectable:
      return FaultDirective::kLoseDevice;
  }
  return FaultDirective::kEscalate;
}

FaultDirective DirectiveOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value()) return FaultDirective::kGoOn;
  const auto code = details->metadata.find("driver_code");
  int number = 0;
  // Without a code, or with 0, the error arose before any driver call.
  if (code == details->metadata.end() || !absl::SimpleAtoi(code->second, &number) || number == 0) {
    return FaultDirective::kGoOn;
  }
  return DirectiveOf(number);
}

WorkerExit ExitFor(FaultDirective directive) {
  switch (directive) {
    case FaultDirective::kGoOn:
      break;
    case FaultDirective::kRestartWorker:
      return WorkerExit::kPoisoned;
    case FaultDirective::kStopDevice:
      return WorkerExit::kUnusable;
    case FaultDirective::kLoseDevice:
      return WorkerExit::kDeviceLost;
    case FaultDirective::kEscalate:
      return WorkerExit::kUnjudged;
  }
  return WorkerExit::kFailed;
}

}  // namespace berth
