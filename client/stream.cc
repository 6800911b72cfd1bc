#include "client/stream.h"

#include <utility>

#include "client/internal/cuda_stream.h"
#include "client/internal/fences.h"
#include "client/internal/host_stream.h"
#include "client/internal/session_fences.h"
#include "client/internal/stream_backend.h"
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
      tracked_(std::make_unique<TrackedStream>(
          opened.slot, &fences_->pages.own()->page().writable_slot(opened.slot), opened.last)) {}

absl::StatusOr<std::shared_ptr<Stream>> Stream::OpenHost(const std::shared_ptr<Session>& session,
                                                         const StreamOptions& options) {
  std::shared_ptr<Fences> fences = SessionFences::Of(session->core());
  auto backend = std::make_unique<HostStream>([daemon = fences->daemon.get()] { return daemon->over(); });
  return Open(std::move(fences), std::move(backend), options);
}

absl::StatusOr<std::shared_ptr<Stream>> Stream::AdoptCuda(const std::shared_ptr<Session>& session,
                                                          const StreamOptions& options) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  BERTH_ASSIGN_OR_RETURN(const int ordinal, driver->CurrentDevice());
  return Open(
      SessionFences::Of(session->core()),
      std::make_unique<CudaStream>(*driver, reinterpret_cast<cuda::Stream>(options.cuda_stream), ordinal),
      options);
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
  // On a host stream what is queued writes the words, so it runs first.
  if (!fences_->daemon->over()) backend_->Synchronize().IgnoreError();
  fences_->daemon->CloseStream(tracked_->slot());
}

absl::Status Stream::Enqueue(std::function<void()> work) { return backend_->Enqueue(std::move(work)); }

absl::Status Stream::Synchronize() { return backend_->Synchronize(); }

}  // namespace berth
