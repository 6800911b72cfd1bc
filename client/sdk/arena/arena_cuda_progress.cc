#include <berth/arena_cuda_progress.h>

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "client/sdk/memory/registered_memory.h"
#include "common/cuda/driver.h"
#include "common/mutex.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth {

namespace {

constexpr size_t kPageBytes = CudaStreamProgress::kMaxStreams * sizeof(uint64_t);

}  // namespace

struct CudaStreamProgress::State {
  // One value in `values`, used by one stream at a time. The value only rises, across all streams that use the slot in
  // turn.
  struct Slot {
    size_t index = 0;
    // The last value that a stream was commanded to write.
    uint64_t last = 0;
  };

  State(cuda::Driver& driver, uint64_t* values, internal::RegisteredMemory registered)
      : driver(driver), values(values), registered(std::move(registered)) {}
  ~State();
  uint64_t Read(const Slot& slot) const {
    return std::atomic_ref(values[slot.index]).load(std::memory_order_acquire);
  }

  cuda::Driver& driver;
  uint64_t* const values;
  // The registration through which streams reach the memory, in any context.
  std::optional<internal::RegisteredMemory> registered;

  Mutex mu;
  absl::flat_hash_map<ArenaStream, Slot> slots ABSL_GUARDED_BY(mu);
  // Slots of forgotten streams.
  std::vector<Slot> unused ABSL_GUARDED_BY(mu);
};

CudaStreamProgress::CudaStreamProgress(std::unique_ptr<State> state) : state_(std::move(state)) {}

CudaStreamProgress::~CudaStreamProgress() = default;

absl::StatusOr<std::shared_ptr<CudaStreamProgress>> CudaStreamProgress::Create(cuda::Driver& driver) {
  void* const values = ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (values == MAP_FAILED) return OsError("mmap", errno);
  absl::StatusOr<internal::RegisteredMemory> registered =
      internal::RegisteredMemory::Register(driver, values, Bytes(kPageBytes), /*read_only=*/false);
  if (!registered.ok()) {
    ::munmap(values, kPageBytes);
    return registered.status();
  }
  return std::shared_ptr<CudaStreamProgress>(
      new CudaStreamProgress(std::make_unique<State>(driver, static_cast<uint64_t*>(values), *std::move(registered))));
}

CudaStreamProgress::State::~State() {
  for (const auto& [stream, slot] : slots) {
    if (Read(slot) >= slot.last) continue;
    registered->Leave();
    return;
  }
  registered.reset();
  ::munmap(values, kPageBytes);
}

absl::StatusOr<StreamProgress::Point> CudaStreamProgress::Mark(ArenaStream stream) {
  // The lock covers the driver call too: a stream's values must be queued in order.
  State& state = *state_;
  MutexLock lock(&state.mu);
  auto it = state.slots.find(stream);
  if (it == state.slots.end()) {
    if (state.slots.size() >= kMaxStreams) {
      return Refuse(Reason::kLimit, "{what}: {current} known, limit {limit}: forget streams that are done",
                    {{"what", "streams"}, {"current", state.slots.size()}, {"limit", kMaxStreams}});
    }
    State::Slot slot = {.index = state.slots.size()};
    if (!state.unused.empty()) {
      slot = state.unused.back();
      state.unused.pop_back();
    }
    it = state.slots.emplace(stream, slot).first;
  }
  State::Slot& slot = it->second;
  BERTH_RETURN_IF_ERROR(state.driver.WriteValue64(
      reinterpret_cast<cuda::Stream>(static_cast<uintptr_t>(stream)),
      state.registered->at() + slot.index * sizeof(uint64_t), slot.last + 1));
  return ++slot.last;
}

absl::StatusOr<bool> CudaStreamProgress::Reached(ArenaStream stream, Point point) {
  State& state = *state_;
  MutexLock lock(&state.mu);
  const auto it = state.slots.find(stream);
  if (it == state.slots.end()) {
    return Refuse(Reason::kNotFound, "no marked {kind} {id}",
                  {{"kind", "stream"}, {"id", static_cast<uint64_t>(stream)}});
  }
  return state.Read(it->second) >= point;
}

void CudaStreamProgress::Forget(ArenaStream stream) {
  State& state = *state_;
  MutexLock lock(&state.mu);
  const auto it = state.slots.find(stream);
  if (it == state.slots.end()) return;
  state.unused.push_back(it->second);
  state.slots.erase(it);
}

}  // namespace berth
