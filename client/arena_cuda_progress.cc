#include "client/arena_cuda_progress.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>

#include "common/bytes.h"
#include "common/error.h"
#include "common/os_error.h"
#include "common/status_macros.h"

namespace berth {

namespace {

constexpr size_t kPageBytes = CudaStreamProgress::kMaxStreams * sizeof(uint64_t);

}  // namespace

absl::StatusOr<std::shared_ptr<CudaStreamProgress>> CudaStreamProgress::Create(cuda::Driver& driver) {
  void* const words = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (words == MAP_FAILED) return OsError("mmap", errno);
  absl::StatusOr<internal::RegisteredMemory> registered =
      internal::RegisteredMemory::Register(driver, words, Bytes(kPageBytes), /*read_only=*/false);
  if (!registered.ok()) {
    ::munmap(words, kPageBytes);
    return registered.status();
  }
  return std::shared_ptr<CudaStreamProgress>(
      new CudaStreamProgress(driver, static_cast<uint64_t*>(words), *std::move(registered)));
}

CudaStreamProgress::~CudaStreamProgress() {
  for (const auto& [stream, slot] : slots_) {
    if (Read(slot) >= slot.last) continue;
    registered_->Leave();
    return;
  }
  registered_.reset();
  ::munmap(words_, kPageBytes);
}

uint64_t CudaStreamProgress::Read(const Slot& slot) const {
  return std::atomic_ref(words_[slot.index]).load(std::memory_order_acquire);
}

absl::StatusOr<StreamProgress::Point> CudaStreamProgress::Mark(ArenaStream stream) {
  // Over the driver's call too: a stream's values have to be queued in their order.
  MutexLock lock(&mu_);
  auto it = slots_.find(stream);
  if (it == slots_.end()) {
    if (slots_.size() >= kMaxStreams) {
      return Refuse(Reason::kLimit, "{what}: {current} are known, limit {limit}: forget those that are done",
                    {{"what", "streams"}, {"current", slots_.size()}, {"limit", kMaxStreams}});
    }
    Slot slot = {.index = slots_.size()};
    if (!unused_.empty()) {
      slot = unused_.back();
      unused_.pop_back();
    }
    it = slots_.emplace(stream, slot).first;
  }
  Slot& slot = it->second;
  BERTH_RETURN_IF_ERROR(driver_.WriteValue64(reinterpret_cast<cuda::Stream>(static_cast<uintptr_t>(stream)),
                                             registered_->at() + slot.index * sizeof(uint64_t),
                                             slot.last + 1));
  return ++slot.last;
}

absl::StatusOr<bool> CudaStreamProgress::Reached(ArenaStream stream, Point point) {
  MutexLock lock(&mu_);
  const auto it = slots_.find(stream);
  if (it == slots_.end()) {
    return Refuse(Reason::kNotFound, "no {kind} {id} was marked",
                  {{"kind", "stream"}, {"id", static_cast<uint64_t>(stream)}});
  }
  return Read(it->second) >= point;
}

void CudaStreamProgress::Forget(ArenaStream stream) {
  MutexLock lock(&mu_);
  const auto it = slots_.find(stream);
  if (it == slots_.end()) return;
  unused_.push_back(it->second);
  slots_.erase(it);
}

}  // namespace berth
