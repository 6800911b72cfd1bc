// Arena: leases large blocks and serves small and large allocations out of them, in the order of streams and
// in some ten nanoseconds, without the daemon and without the driver. ArenaBuffer: one allocation, owned.
//
//   absl::StatusOr<std::shared_ptr<berth::Arena>> arena =
//       berth::Arena::Create(session, {.limit = berth::GiB(8), .label = "activations"});
//   if (!arena.ok()) return arena.status();
//   const auto stream = static_cast<berth::ArenaStream>(reinterpret_cast<uintptr_t>(cuda_stream));
//   auto buffer = berth::ArenaBuffer::Allocate(*arena, berth::MiB(3), stream);
//   if (!buffer.ok()) return buffer.status();
//   Launch(buffer->data(), buffer->size(), cuda_stream);   // freed, in the stream's order, with the buffer
//
// The order. Memory that was freed on a stream is at once there for allocations on the same stream, whose work
// comes after what was queued before the free. Another stream gets it only when the first is known to have
// come past the free. So who frees says: all use so far is on, or is waited for by, the stream that I free on;
// and names every other stream that uses it by UsedOn(). Host memory is used by threads: its streams are
// mere numbers, and what is freed is done with.
//
// Never touches the memory itself. An allocation holds whatever was in it.

#ifndef CLIENT_ARENA_H_
#define CLIENT_ARENA_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/arena_options.h"
#include "client/arena_stream.h"
#include "client/block.h"
#include "client/session.h"
#include "common/bytes.h"

namespace berth {

namespace internal {
class ArenaCore;
}  // namespace internal

// Thread-safe. Shared, because its buffers keep it. With CUDA memory a thread that allocates, frees or trims
// has the device's context current.
//
// At its end it gives back what is free, and waits at most 2 s for streams to come past what was freed on
// them. A block in which something is still allocated or in use stays leased and mapped to the end of the
// process: unmapping it would pull it from under the GPU.
//
// In the child of a plain fork() every call fails with kFailedPrecondition, and nothing is given back.
class Arena {
 public:
  // Leases the first chunk, so that what cannot work is refused here.
  // Errors: INVALID_FIELD for the options; as Allocate() else.
  static absl::StatusOr<std::shared_ptr<Arena>> Create(const std::shared_ptr<Session>& session,
                                                       ArenaOptions options = {});

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Allocates at least `bytes`, for use on `stream`.
  // Returns: an address of the host, or for CUDA memory of the device.
  // Errors: INVALID_FIELD for 0 bytes, OUT_OF_RANGE past 64 TiB; OVER_BUDGET of layer "arena" past the limit;
  // STALE when the device's memory was lost or the session is over: free everything, Trim(), and allocate
  // anew; when a block must be leased for it, those of Block::Allocate() and Block::Map(). Before anything is
  // refused for want of memory, what is free is given back and asked for again.
  absl::StatusOr<void*> Allocate(Bytes bytes, ArenaStream stream = ArenaStream::kDefault);

  // Frees what Allocate() returned, in the order of `stream`, which may be another one.
  // Errors, each with nothing changed: NOT_FOUND for an address outside this arena; STALE for one inside at
  // which nothing is allocated: freed before, or no allocation's start.
  absl::Status Free(void* pointer, ArenaStream stream = ArenaStream::kDefault);

  // Says that work on `stream` uses the allocation too: its memory is not reused, not even on the stream that
  // frees it, before `stream` has come past the moment of the free. Costs a driver call at the free.
  // Errors: as Free().
  absl::Status UsedOn(void* pointer, ArenaStream stream);

  // Drops a stream, and lets any other have what was freed on it. Call it before a stream is destroyed: a new
  // one may get the same number. Requires: all work on it is done, and no call names it meanwhile.
  void ForgetStream(ArenaStream stream);

  // Gives every chunk back to the daemon in which nothing is allocated, cached or in use. A stream that is still
  // at work is not waited for: what it uses stays.
  // Returns: what was given back. Errors: those of the progress of streams.
  absl::StatusOr<Bytes> Trim();

  ArenaStats Stats() const;

  // What its memory is made of.
  BlockKind kind() const;
  Bytes alignment() const;

 private:
  Arena(std::unique_ptr<internal::ArenaCore> core, BlockKind kind);

  const std::unique_ptr<internal::ArenaCore> core_;
  const BlockKind kind_;
};

// One allocation of an arena, freed with it. Move-only. Thread-compatible.
class ArenaBuffer {
 public:
  // Errors: as Arena::Allocate().
  static absl::StatusOr<ArenaBuffer> Allocate(std::shared_ptr<Arena> arena, Bytes bytes,
                                              ArenaStream stream = ArenaStream::kDefault);

  ArenaBuffer() = default;
  ArenaBuffer(ArenaBuffer&& other) noexcept { Swap(other); }
  ArenaBuffer& operator=(ArenaBuffer&& other) noexcept {
    ArenaBuffer(std::move(other)).Swap(*this);
    return *this;
  }
  ~ArenaBuffer() {
    if (data_ != nullptr) arena_->Free(data_, stream_).IgnoreError();
  }

  // Null once moved from or freed.
  void* data() const { return data_; }
  // As asked for.
  Bytes size() const { return size_; }
  // The stream that it will be freed on: the one it was allocated on, unless set. Whoever sets it has made
  // that stream wait for the other, or says UsedOn() the other.
  ArenaStream stream() const { return stream_; }
  void set_stream(ArenaStream stream) { stream_ = stream; }

  // As Arena::UsedOn().
  absl::Status UsedOn(ArenaStream stream) const { return arena_->UsedOn(data_, stream); }

  // Frees it now. Idempotent. Errors: as Arena::Free().
  absl::Status Free();

 private:
  ArenaBuffer(std::shared_ptr<Arena> arena, void* data, Bytes size, ArenaStream stream)
      : arena_(std::move(arena)), data_(data), size_(size), stream_(stream) {}
  void Swap(ArenaBuffer& other) noexcept {
    std::swap(arena_, other.arena_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
  }

  std::shared_ptr<Arena> arena_;
  void* data_ = nullptr;
  Bytes size_;
  ArenaStream stream_ = ArenaStream::kDefault;
};

}  // namespace berth

#endif  // CLIENT_ARENA_H_
