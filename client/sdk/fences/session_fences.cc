#include "client/sdk/fences/session_fences.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "berth/v1/fence.grpc.pb.h"
#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/side_channel.h"
#include "common/status_macros.h"

namespace berth::internal {
namespace {

template <typename Ids>
std::vector<BlockId> BlocksOf(const Ids& ids) {
  std::vector<BlockId> blocks;
  for (const uint64_t id : ids) blocks.push_back(BlockId(id));
  return blocks;
}

}  // namespace

std::shared_ptr<Fences> SessionFences::Of(const std::shared_ptr<SessionCore>& core) {
  Fences& fences = core->fences();
  std::call_once(fences.once, [&] {
    // The core owns the fences and their daemon, so neither outlives it.
    fences.daemon.reset(new SessionFences(core.get()));
  });
  return std::shared_ptr<Fences>(core, &fences);
}

absl::StatusOr<OpenedStream> SessionFences::OpenStream(uint32_t device, bool default_stream) {
  BERTH_RETURN_IF_ERROR(core_.CheckStreams());
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core_.Begin());
  v1::OpenStreamRequest request;
  open.Fill(request.mutable_request());
  request.set_device(device);
  request.set_default_stream(default_stream);
  v1::OpenStreamResponse response;
  const CallLimits limits = core_.DefaultLimits();
  core_.channel().Expect(open.sequence());
  const absl::Status status = core_.Call(limits, [&](grpc::ClientContext* context) {
    return core_.stubs().Of<v1::FenceService>().OpenStream(context, request, &response);
  });
  if (!status.ok()) {
    core_.channel().Abandon(open.sequence());
    open.Resolve(status);
    return status;
  }
  // The request stays open until the page has arrived: a ForgetRequest until then closes the stream.
  BERTH_ASSIGN_OR_RETURN(Arrival arrival, core_.Await(open.sequence(), limits.deadline));
  // After a change of daemon this process may already have the earlier daemon's page, so streams are over.
  BERTH_RETURN_IF_ERROR(core_.CheckStreams());
  BERTH_RETURN_IF_ERROR(core_.fences().pages.SetOwn(std::move(arrival.fd)));
  open.Settle();
  for (const uint64_t block : response.shared_blocks()) core_.fences().tracker.MarkShared(BlockId(block));
  return OpenedStream{.slot = response.slot(), .id = response.id(), .last = response.last_value()};
}

void SessionFences::CloseStream(uint32_t slot) {
  core_
      .GiveBack([&](const OpenRequest& open) -> Attempt {
        v1::CloseStreamRequest request;
        open.Fill(request.mutable_request());
        request.set_slot(slot);
        return [this, request](grpc::ClientContext* context) {
          v1::CloseStreamResponse response;
          return core_.stubs().Of<v1::FenceService>().CloseStream(context, request, &response);
        };
      })
      .IgnoreError();
}

absl::StatusOr<RemotePrepared> SessionFences::Prepare(uint32_t slot, absl::Span<const RemoteUse> uses,
                                                      absl::Duration patience) {
  BERTH_RETURN_IF_ERROR(core_.CheckStreams());
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core_.Begin());
  v1::PrepareUseRequest request;
  open.Fill(request.mutable_request());
  request.set_slot(slot);
  for (const RemoteUse& use : uses) {
    v1::PrepareUseRequest::Use* const to = request.add_uses();
    to->set_block(use.block.value());
    to->set_access(static_cast<v1::PrepareUseRequest::Access>(use.access));
  }
  patience = std::clamp(patience, absl::ZeroDuration(), absl::Hours(1));
  request.mutable_max_wait()->set_seconds(absl::ToInt64Seconds(patience));
  request.mutable_max_wait()->set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(patience - absl::Seconds(absl::ToInt64Seconds(patience)))));
  v1::PrepareUseResponse response;
  const CallLimits limits = CallLimits::Within(patience);
  const absl::Status status = core_.Call(limits, [&](grpc::ClientContext* context) {
    return core_.stubs().Of<v1::FenceService>().PrepareUse(context, request, &response);
  });
  open.Resolve(status);
  BERTH_RETURN_IF_ERROR(status);
  RemotePrepared prepared = {.use = UseId(response.use()), .torn = BlocksOf(response.torn_blocks())};
  for (const v1::PrepareUseResponse::Wait& wait : response.waits()) {
    prepared.waits.push_back(
        {.owner = ChannelId(wait.channel()), .slot = wait.slot(), .value = wait.value()});
  }
  return prepared;
}

absl::StatusOr<std::vector<BlockId>> SessionFences::Finish(UseId use, uint64_t value) {
  // A background retry may answer after this method has returned.
  const auto response = std::make_shared<v1::FinishUseResponse>();
  const auto finish = [&](const OpenRequest& open) -> Attempt {
    v1::FinishUseRequest request;
    open.Fill(request.mutable_request());
    request.set_use(use.value());
    request.set_value(value);
    return [this, request, response](grpc::ClientContext* context) {
      return core_.stubs().Of<v1::FenceService>().FinishUse(context, request, response.get());
    };
  };
  // The caller needs the answer to continue, also across several broker deaths, so wait as long as for any call.
  BERTH_RETURN_IF_ERROR(core_.GiveBack(finish, core_.DefaultLimits().deadline));
  return BlocksOf(response->torn_blocks());
}

void SessionFences::Abandon(UseId use) {
  core_
      .GiveBack([&](const OpenRequest& open) -> Attempt {
        v1::AbandonUseRequest request;
        open.Fill(request.mutable_request());
        request.set_use(use.value());
        return [this, request](grpc::ClientContext* context) {
          v1::AbandonUseResponse response;
          return core_.stubs().Of<v1::FenceService>().AbandonUse(context, request, &response);
        };
      })
      .IgnoreError();
}

}  // namespace berth::internal
