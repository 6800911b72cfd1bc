#include <berth/block.h>

#include <string.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/devices/device_constraint.h"
#include "client/sdk/memory/import.h"
#include "client/sdk/transport/duration.h"
#include "client/sdk/transport/session_core.h"
#include "common/label.h"
#include "common/status_macros.h"

namespace berth {
namespace {

using internal::Arrival;
using internal::Attempt;
using internal::CallLimits;
using internal::OpenRequest;
using internal::SessionCore;

BlockHandle FromProto(const v1::BlockHandle& proto) {
  return {.node = proto.node(),
          .incarnation = proto.incarnation(),
          .device_uuid = proto.device_uuid(),
          .block = BlockId(proto.block()),
          .generation = proto.generation(),
          .block_generation = proto.block_generation()};
}

void ToProto(const BlockHandle& handle, v1::BlockHandle* proto) {
  proto->set_node(handle.node);
  proto->set_incarnation(handle.incarnation);
  proto->set_device_uuid(handle.device_uuid);
  proto->set_block(handle.block.value());
  proto->set_generation(handle.generation);
  proto->set_block_generation(handle.block_generation);
}

BlockKind KindOf(const v1::Block& block) {
  switch (block.kind()) {
    case v1::MEMORY_KIND_CUDA_VMM:
      return BlockKind::kCudaVmm;
    case v1::MEMORY_KIND_CUDA_DIRECT:
      return BlockKind::kCudaDirect;
    default:
      return BlockKind::kHost;
  }
}

void ToProto(const std::vector<ExportKind>& kinds, google::protobuf::RepeatedField<int>* out) {
  for (const ExportKind kind : kinds) out->Add(static_cast<int>(kind));
}

// Reads the IPC handle of a CUDA_IPC block; nothing for other kinds. Errors: kInternal if its size is wrong.
absl::StatusOr<std::optional<IpcHandle>> HandleOf(const v1::Block& block, const std::string& bytes) {
  if (block.export_kind() != v1::EXPORT_KIND_CUDA_IPC) return std::nullopt;
  IpcHandle handle;
  if (bytes.size() != sizeof(handle.bytes)) {
    return absl::InternalError(absl::StrCat("the daemon sent an IPC handle of ", bytes.size(), " bytes"));
  }
  memcpy(handle.bytes.data(), bytes.data(), bytes.size());
  return handle;
}

// Sends a request whose answer has two parts: `attempt`'s reply on gRPC, and the import on the side channel. The
// request is settled once both have arrived. Until then it can be forgotten, whatever the first part contained.
absl::StatusOr<Arrival> CallForImport(SessionCore& core, OpenRequest open, const CallLimits& limits,
                                      const Attempt& attempt) {
  core.channel().Expect(open.sequence());
  if (const absl::Status status = core.Call(limits, attempt); !status.ok()) {
    core.channel().Abandon(open.sequence());
    open.Resolve(status);
    return status;
  }
  BERTH_ASSIGN_OR_RETURN(Arrival arrival, core.Await(open.sequence(), limits.deadline));
  open.Settle();
  return arrival;
}

}  // namespace

Mapping::Mapping(std::shared_ptr<internal::Import> import, void* data)
    : import_(std::move(import)), data_(data), size_(import_->block().bytes()) {}

bool Mapping::read_only() const { return import_->read_only(); }

BlockKind Mapping::kind() const { return KindOf(import_->block()); }

Block::Block(std::shared_ptr<internal::Import> import, bool owned)
    : handle_(FromProto(import->block().handle())), owned_(owned), import_(std::move(import)) {}

Block& Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  Free().IgnoreError();
  handle_ = std::move(other.handle_);
  owned_ = other.owned_;
  import_ = std::move(other.import_);
  return *this;
}

Block::~Block() { Free().IgnoreError(); }

absl::StatusOr<Block> Block::Allocate(const std::shared_ptr<Session>& session, const BlockOptions& options) {
  return Allocate(session->core(), options, ReservationId());
}

absl::StatusOr<Block> Block::Allocate(const std::shared_ptr<SessionCore>& core, const BlockOptions& options,
                                      ReservationId reservation) {
  BERTH_RETURN_IF_ERROR(internal::CheckNotNegative("max_wait", options.max_wait));
  BERTH_ASSIGN_OR_RETURN(const bool picks, internal::HasConstraint(options.pick, options));
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core->Begin());
  v1::AllocateBlockRequest request;
  if (picks) internal::FillConstraint(options.pick, options, internal::DevicesOfProcess(), request.mutable_wish());
  open.Fill(request.mutable_request());
  request.mutable_request()->set_takes_up(true);
  request.set_device(options.device);
  request.set_device_uuid(options.device_uuid);
  request.set_bytes(options.bytes.count());
  request.set_label(ToLabel(options.label));
  ToProto(options.export_kinds, request.mutable_export_kinds());
  request.set_reservation(reservation.value());
  if (options.max_wait > absl::ZeroDuration())
    internal::ToProto(options.max_wait, request.mutable_max_wait());
  CallLimits limits = core->DefaultLimits();
  limits.deadline += options.max_wait;
  limits.cancellation = options.cancellation;
  v1::AllocateBlockResponse response;
  BERTH_ASSIGN_OR_RETURN(Arrival arrival,
                         CallForImport(*core, std::move(open), limits, [&](grpc::ClientContext* context) {
                           return core->stubs().Of<v1::MemoryService>().AllocateBlock(context, request, &response);
                         }));
  BERTH_ASSIGN_OR_RETURN(const auto ipc_handle, HandleOf(response.block(), response.ipc_handle()));
  return Block(std::make_shared<internal::Import>(core, response.block(), std::move(arrival),
                                                  /*read_only=*/false, ipc_handle, options.map_on, options.on_event),
               /*owned=*/true);
}

absl::StatusOr<Block> Block::Import(const std::shared_ptr<Session>& session, const BlockHandle& handle,
                                    const ImportOptions& options) {
  v1::ImportBlockRequest request;
  ToProto(handle, request.mutable_handle());
  request.set_read_only(options.read_only);
  ToProto(options.export_kinds, request.mutable_export_kinds());
  return Import(session->core(), &request, options.map_on, options.on_event);
}

absl::StatusOr<Block> Block::ImportPublished(const std::shared_ptr<Session>& session, absl::string_view name,
                                             const std::optional<Publisher>& publisher,
                                             std::function<void(const BlockEvent&)> on_event) {
  if (name.empty()) return absl::InvalidArgumentError("the name is empty: expected the name of a published block");
  BERTH_RETURN_IF_ERROR(ValidateLabel("name", name));
  v1::ImportBlockRequest request;
  request.set_name(std::string(name));
  request.set_read_only(true);
  if (publisher.has_value()) {
    request.mutable_publisher()->set_uid(publisher->uid);
    request.mutable_publisher()->set_container(publisher->container);
  }
  return Import(session->core(), &request, /*map_on=*/"", std::move(on_event));
}

absl::StatusOr<Block> Block::Import(const std::shared_ptr<SessionCore>& core, v1::ImportBlockRequest* request,
                                    const std::string& map_on,
                                    std::function<void(const BlockEvent&)> on_event) {
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core->Begin());
  open.Fill(request->mutable_request());
  v1::ImportBlockResponse response;
  BERTH_ASSIGN_OR_RETURN(
      Arrival arrival, CallForImport(*core, std::move(open), core->DefaultLimits(), [&](grpc::ClientContext* context) {
        return core->stubs().Of<v1::MemoryService>().ImportBlock(context, *request, &response);
      }));
  BERTH_ASSIGN_OR_RETURN(const auto ipc_handle, HandleOf(response.block(), response.ipc_handle()));
  return Block(std::make_shared<internal::Import>(core, response.block(), std::move(arrival),
                                                  request->read_only(), ipc_handle, map_on, std::move(on_event)),
               /*owned=*/false);
}

Bytes Block::bytes() const { return Bytes(import_->block().bytes()); }

uint32_t Block::device() const { return import_->block().device(); }

BlockKind Block::kind() const { return KindOf(import_->block()); }

ExportKind Block::export_kind() const { return static_cast<ExportKind>(import_->block().export_kind()); }

absl::StatusOr<Mapping> Block::Map() const {
  if (import_ == nullptr) return absl::FailedPreconditionError("the block was freed by this process");
  BERTH_ASSIGN_OR_RETURN(void* data, import_->Map());
  return Mapping(import_, data);
}

absl::Status Block::CheckOwned() const {
  if (import_ == nullptr) return absl::FailedPreconditionError("the block was freed by this process");
  if (!owned_)
    return absl::FailedPreconditionError("only the process that allocated the block can grant or publish it");
  return absl::OkStatus();
}

absl::Status Block::GrantToSession(SessionId session) const {
  BERTH_RETURN_IF_ERROR(CheckOwned());
  v1::GrantBlockRequest request;
  request.set_session(session.value());
  return Grant(&request);
}

absl::Status Block::GrantToTenant(uint32_t uid, absl::string_view container) const {
  BERTH_RETURN_IF_ERROR(CheckOwned());
  v1::GrantBlockRequest request;
  request.mutable_tenant()->set_uid(uid);
  request.mutable_tenant()->set_container(std::string(container));
  return Grant(&request);
}

absl::Status Block::Grant(v1::GrantBlockRequest* request) const {
  SessionCore& core = *import_->core();
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core.Begin());
  open.Fill(request->mutable_request());
  ToProto(handle_, request->mutable_handle());
  const absl::Status status = core.Call(core.DefaultLimits(), [&](grpc::ClientContext* context) {
    v1::GrantBlockResponse response;
    return core.stubs().Of<v1::MemoryService>().GrantBlock(context, *request, &response);
  });
  open.Resolve(status);
  return status;
}

absl::Status Block::Publish(absl::string_view name, const PublishOptions& options) {
  BERTH_RETURN_IF_ERROR(CheckOwned());
  if (import_.use_count() != 1) {
    return absl::FailedPreconditionError(
        "this process still maps the block: release its mappings before publishing it");
  }
  BERTH_RETURN_IF_ERROR(ValidateLabel("name", name));
  const std::shared_ptr<SessionCore> core = import_->core();
  BERTH_RETURN_IF_ERROR(import_->Synchronize());
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core->Begin());
  import_->CloseUnannounced();
  v1::PublishBlockRequest request;
  open.Fill(request.mutable_request());
  ToProto(handle_, request.mutable_handle());
  request.set_name(std::string(name));
  request.add_let_go(import_->id().value());
  request.set_replace(options.replace);
  const absl::Status status = core->Call(core->DefaultLimits(), [&](grpc::ClientContext* context) {
    v1::PublishBlockResponse response;
    return core->stubs().Of<v1::MemoryService>().PublishBlock(context, request, &response);
  });
  open.Resolve(status);
  if (status.ok()) {
    import_.reset();
    return status;
  }
  // A refusal before the daemon evaluated the request has released nothing.
  core->channel().LetGo(import_->id());
  v1::ImportBlockRequest again;
  ToProto(handle_, again.mutable_handle());
  again.add_export_kinds(import_->block().export_kind());
  absl::StatusOr<Block> block = Import(core, &again, /*map_on=*/"", import_->on_event());
  if (block.ok()) import_ = std::move(block->import_);
  return status;
}

absl::Status Block::Unpublish(const std::shared_ptr<Session>& session, absl::string_view name,
                              const std::optional<Publisher>& tenant) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("name", name));
  const std::shared_ptr<SessionCore>& core = session->core();
  v1::UnpublishBlockRequest request;
  request.set_name(std::string(name));
  if (tenant.has_value()) {
    request.mutable_tenant()->set_uid(tenant->uid);
    request.mutable_tenant()->set_container(tenant->container);
  }
  return core->GiveBack([&](const OpenRequest& open) -> Attempt {
    open.Fill(request.mutable_request());
    return [raw = core.get(), request](grpc::ClientContext* context) {
      v1::UnpublishBlockResponse response;
      return raw->stubs().Of<v1::MemoryService>().UnpublishBlock(context, request, &response);
    };
  });
}

bool Block::AskedBack() const { return import_ != nullptr && import_->asked_back(); }

absl::Status Block::Free() {
  const std::shared_ptr<internal::Import> import = std::move(import_);
  if (import == nullptr || !owned_) return absl::OkStatus();
  import->StopListening();
  internal::EndLease(import->lease(), internal::Lease::kFreed);
  // Nothing else in this process maps the block: release its import in the same request, which saves the daemon a
  // quarantine.
  const bool only_here = import.use_count() == 1;
  if (only_here) import->CloseUnannounced();
  SessionCore& core = *import->core();
  const absl::Status freed = core.GiveBack([&](const OpenRequest& open) -> Attempt {
    v1::FreeBlockRequest request;
    open.Fill(request.mutable_request());
    ToProto(handle_, request.mutable_handle());
    if (only_here) request.add_let_go(import->id().value());
    return [&core, request](grpc::ClientContext* context) {
      v1::FreeBlockResponse response;
      return core.stubs().Of<v1::MemoryService>().FreeBlock(context, request, &response);
    };
  });
  // A refusal releases nothing, for example if the block was already freed elsewhere.
  if (!freed.ok() && only_here && core.Check().ok()) core.channel().LetGo(import->id());
  return freed;
}

}  // namespace berth
