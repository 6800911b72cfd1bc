#include "daemon/service/fence_conversion.h"

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/service/conversion.h"

namespace berth::service {

absl::StatusOr<core::PrepareUseRequest> FromProto(const v1::PrepareUseRequest& request) {
  core::PrepareUseRequest out = {.slot = request.slot()};
  for (const v1::PrepareUseRequest::Use& use : request.uses()) {
    if (use.access() < v1::PrepareUseRequest::READ || use.access() > v1::PrepareUseRequest::READ_WRITE) {
      return Refuse(
          Reason::kInvalidField, "{field}: {value} is no access; expected {limit}",
          {{"field", "uses.access"}, {"value", static_cast<int>(use.access())}, {"limit", "1 to 3"}});
    }
    out.uses.push_back({.block = BlockId(use.block()), .access = static_cast<core::Access>(use.access())});
  }
  if (request.has_max_wait()) {
    BERTH_ASSIGN_OR_RETURN(out.patience, FromProto("max_wait", request.max_wait()));
  }
  return out;
}

void ToProto(const core::OpenStreamResult& result, v1::OpenStreamResponse* out) {
  out->set_slot(result.stream.slot);
  out->set_id(result.id);
  out->set_last_value(result.last_value);
  for (const BlockId block : result.shared) out->add_shared_blocks(block.value());
}

void ToProto(const core::CloseStreamResult&, v1::CloseStreamResponse*) {}

void ToProto(const core::Prepared& result, v1::PrepareUseResponse* out) {
  out->set_use(result.use.value());
  for (const core::FenceWait& wait : result.waits) {
    v1::PrepareUseResponse::Wait* const to = out->add_waits();
    to->set_channel(wait.stream.channel.value());
    to->set_slot(wait.stream.slot);
    to->set_value(wait.value);
  }
  for (const BlockId block : result.torn) out->add_torn_blocks(block.value());
}

void ToProto(const core::FinishUseResult& result, v1::FinishUseResponse* out) {
  for (const BlockId block : result.torn) out->add_torn_blocks(block.value());
}

void ToProto(const core::AbandonUseResult&, v1::AbandonUseResponse*) {}

void ToProto(const core::StreamView& view, v1::FenceStream* out) {
  out->set_channel(view.stream.channel.value());
  out->set_slot(view.stream.slot);
  ToProto(view.process, out->mutable_process());
  out->set_device(view.device);
  out->set_id(view.id);
  ToProto(view.since, out->mutable_open_time());
  out->set_done(view.words.done);
  out->set_local_begun(view.words.begun);
  out->set_local_ended(view.words.ended);
  out->set_last_value(view.last_value);
  out->set_open_uses(view.open_uses);
  if (view.open_uses > 0) ToProto(view.open_since, out->mutable_open_use_time());
}

}  // namespace berth::service
