#include "client/sdk/fences/cuda_stream.h"

#include <berth/error.h>

#include "common/cuda/current_context.h"
#include "common/status_macros.h"

namespace berth::internal {
namespace {

class CudaEvent final : public StreamEvent {
 public:
  CudaEvent(cuda::Driver& driver, cuda::Context context, cuda::Event event)
      : driver_(driver), context_(context), event_(event) {}
  ~CudaEvent() override {
    const absl::StatusOr<cuda::CurrentContext> current = cuda::CurrentContext::Enter(driver_, context_);
    driver_.DestroyEvent(event_).IgnoreError();
  }
  cuda::Event get() const { return event_; }

 private:
  cuda::Driver& driver_;
  const cuda::Context context_;
  const cuda::Event event_;
};

cuda::Event EventOf(StreamEvent& event) { return static_cast<CudaEvent&>(event).get(); }

}  // namespace

CudaStream::~CudaStream() {
  if (side_ == nullptr) return;
  side_event_.reset();
  const absl::StatusOr<cuda::CurrentContext> current = cuda::CurrentContext::Enter(driver_, context_);
  // Wait, because the page of the values may be unmapped after this.
  driver_.SynchronizeStream(side_).IgnoreError();
  driver_.DestroyStream(side_).IgnoreError();
}

absl::Status CudaStream::CheckSupport() {
  BERTH_ASSIGN_OR_RETURN(const int supported,
                         driver_.Attribute(ordinal_, cuda::DeviceAttribute::kStreamMemoryOperations));
  if (supported != 0) return absl::OkStatus();
  return Refuse(Reason::kUnsupported, "the device's streams cannot wait for values in memory: no {capability}",
                {{"capability", "fences"}});
}

absl::StatusOr<std::unique_ptr<StreamEvent>> CudaStream::CreateEvent() {
  BERTH_ASSIGN_OR_RETURN(const cuda::CurrentContext current, cuda::CurrentContext::Enter(driver_, context_));
  BERTH_ASSIGN_OR_RETURN(const cuda::Event event, driver_.CreateEvent());
  return std::make_unique<CudaEvent>(driver_, context_, event);
}

absl::Status CudaStream::Record(StreamEvent& event) { return driver_.RecordEvent(EventOf(event), stream_); }

absl::Status CudaStream::WaitEvent(StreamEvent& event) { return driver_.WaitEvent(stream_, EventOf(event)); }

absl::Status CudaStream::Wait(MappedPage& page, uint32_t slot, uint64_t value) {
  BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer address, page.DeviceFenceValue(driver_, slot));
  return driver_.WaitValue64(stream_, address, value);
}

absl::Status CudaStream::Write(MappedPage& page, uint32_t slot, uint64_t value) {
  BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer address, page.DeviceFenceValue(driver_, slot));
  if (published_) {
    BERTH_RETURN_IF_ERROR(driver_.WaitEvent(stream_, EventOf(*side_event_)));
    published_ = false;
  }
  return driver_.WriteValue64(stream_, address, value);
}

absl::StatusOr<bool> CudaStream::Reached(StreamEvent& event) {
  BERTH_ASSIGN_OR_RETURN(const cuda::CurrentContext current, cuda::CurrentContext::Enter(driver_, context_));
  return driver_.QueryEvent(EventOf(event));
}

absl::Status CudaStream::OpenSide() {
  if (side_event_ == nullptr) {
    BERTH_ASSIGN_OR_RETURN(const cuda::Event event, driver_.CreateEvent());
    side_event_ = std::make_unique<CudaEvent>(driver_, context_, event);
  }
  if (side_ == nullptr) {
    BERTH_ASSIGN_OR_RETURN(side_, driver_.CreateStream());
  }
  return absl::OkStatus();
}

absl::Status CudaStream::Publish(StreamEvent& event, MappedPage& page, uint32_t slot, uint64_t value) {
  BERTH_ASSIGN_OR_RETURN(const cuda::CurrentContext current, cuda::CurrentContext::Enter(driver_, context_));
  BERTH_RETURN_IF_ERROR(OpenSide());
  BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer address, page.DeviceFenceValue(driver_, slot));
  // Do not touch the user's stream. The driver may bind it to another thread (one stream per thread), or it may be
  // under capture into a graph. The stream may also have much queued work that has nothing to do with the event.
  BERTH_RETURN_IF_ERROR(driver_.WaitEvent(side_, EventOf(event)));
  BERTH_RETURN_IF_ERROR(driver_.WriteValue64(side_, address, value));
  published_ = true;
  return driver_.RecordEvent(EventOf(*side_event_), side_);
}

absl::Status CudaStream::Enqueue(std::function<void()>) {
  return Refuse(Reason::kUnsupported, "a CUDA stream runs kernels, not {capability}",
                {{"capability", "host functions"}});
}

}  // namespace berth::internal
