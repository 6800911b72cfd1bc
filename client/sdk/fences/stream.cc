#include <berth/stream.h>

#include <utility>

#include "client/sdk/fences/cuda_stream.h"
#include "client/sdk/fences/fences.h"
#include "client/sdk/fences/host_stream.h"
#include "client/sdk/fences/session_fences.h"
#include "client/sdk/fences/stream_backend.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"

namespace berth {

using internal::CudaStream;
using internal::Fences;
using internal::HostStream;
using internal::OpenedStream;
using internal::SessionFences;
using internal::StreamBackend;
using internal::TrackedStream;

Stream::Stream(std::shared_ptr<Fences> fences, std::unique_ptr<StreamBackend> backend, uint32_t device,
               const OpenedStream& opened)
    : fences_(std::move(fences)),
      backend_(std::move(backend)),
      device_(device),
      id_(opened.id),
      tracked_(
          std::make_unique<TrackedStream>(backend_.get(), fences_->pages.own(), opened.slot, opened.last)) {}

absl::StatusOr<std::shared_ptr<Stream>> Stream::OpenHost(const std::shared_ptr<Session>& session,
                                                         const StreamOptions& options) {
  std::shared_ptr<Fences> fences = SessionFences::Of(session->core());
  BERTH_ASSIGN_OR_RETURN(std::unique_ptr<HostStream> backend,
                         HostStream::Start([daemon = fences->daemon.get()] { return daemon->over(); }));
  return Open(std::move(fences), std::move(backend), options);
}

absl::StatusOr<std::shared_ptr<Stream>> Stream::AdoptCuda(const std::shared_ptr<Session>& session,
                                                          const StreamOptions& options) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  BERTH_ASSIGN_OR_RETURN(const int ordinal, driver->CurrentDevice());
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver->CurrentContext());
  auto backend = std::make_unique<CudaStream>(*driver, reinterpret_cast<cuda::Stream>(options.cuda_stream),
                                              context, ordinal);
  return Open(SessionFences::Of(session->core()), std::move(backend), options);
}

absl::StatusOr<std::shared_ptr<Stream>> Stream::Open(std::shared_ptr<Fences> fences,
                                                     std::unique_ptr<StreamBackend> backend,
                                                     const StreamOptions& options) {
  BERTH_RETURN_IF_ERROR(backend->CheckSupport());
  BERTH_ASSIGN_OR_RETURN(const OpenedStream opened,
                         fences->daemon->OpenStream(options.device, options.default_stream));
  return std::shared_ptr<Stream>(new Stream(std::move(fences), std::move(backend), options.device, opened));
}

Stream::~Stream() {
  // On a host stream the queued functions write the fence values, so they run first.
  if (fences_->daemon->over()) {
    // Work that has not run may never run.
    fences_->tracker.Look(*tracked_);
  } else {
    Synchronize().IgnoreError();
  }
  fences_->tracker.Close(*tracked_);
  fences_->daemon->CloseStream(tracked_->slot());
}

absl::Status Stream::Enqueue(std::function<void()> work) { return backend_->Enqueue(std::move(work)); }

absl::Status Stream::Synchronize() {
  const uint64_t point = fences_->tracker.Point(*tracked_);
  BERTH_RETURN_IF_ERROR(backend_->Synchronize());
  fences_->tracker.SawEnd(*tracked_, point);
  return absl::OkStatus();
}

}  // namespace berth
