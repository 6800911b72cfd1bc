#include "daemon/service/conversion/fence_conversion.h"

#include "berth/v1/fence.pb.h"
#include "daemon/service/conversion/conversion.h"

namespace berth::service {

void ToProto(const core::StreamView& view, v1::FenceStream* out) {
  out->set_channel(view.stream.channel.value());
  out->set_slot(view.stream.slot);
  ToProto(view.process, out->mutable_process());
  out->set_device(view.device);
  out->set_id(view.id);
  ToProto(view.since, out->mutable_open_time());
  out->set_done(view.fence_values.done);
  out->set_local_begun(view.fence_values.begun);
  out->set_local_ended(view.fence_values.ended);
  out->set_last_value(view.last_value);
  out->set_open_uses(view.open_uses);
  if (view.open_uses > 0) ToProto(view.open_since, out->mutable_open_use_time());
}

}  // namespace berth::service
