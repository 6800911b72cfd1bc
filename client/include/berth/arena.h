// Arena: leases large blocks from the daemon and serves small and large allocations out of them, in stream order. An
// allocation takes some ten nanoseconds and needs neither the daemon nor the driver. ArenaBuffer: one owned allocation.
//
//   absl::StatusOr<std::shared_ptr<berth::Arena>> arena =
//       berth::Arena::Create(session, {.limit = berth::GiB(8), .label = "activations"});
//   if (!arena.ok()) return arena.status();
//   const auto stream = static_cast<berth::ArenaStream>(reinterpret_cast<uintptr_t>(cuda_stream));
//   auto buffer = berth::ArenaBuffer::Allocate(*arena, berth::MiB(3), stream);
//   if (!buffer.ok()) return buffer.status();
//   Launch(buffer->data(), buffer->size(), cuda_stream);   // freed with the buffer, in stream order
//
// Order. An allocation on the same stream can reuse freed memory at once: its work runs after the work queued before
// the free. Another stream gets the memory only when the freeing stream is known to have passed the free. So the caller
// of Free() states that all use so far is on the freeing stream, or that the freeing stream waits for it. UsedOn()
// names every other stream that uses the memory. Host memory is used by threads: its streams are plain numbers, and
// freed memory is no longer in use.
//
// The arena never touches the memory itself. A new allocation has unspecified content.

#ifndef BERTH_ARENA_H_
#define BERTH_ARENA_H_

#include <cstddef>
#include <memory>
#include <utility>

#include <berth/arena_options.h>
#include <berth/arena_stream.h>
#include <berth/block.h>
#include <berth/bytes.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace berth {

namespace internal {
class ArenaCore;
}  // namespace internal

// Thread-safe. Shared: its buffers hold a reference. With CUDA memory, a thread that allocates, frees or trims has the
// device's context current.
//
// The destructor returns the free memory, and waits at most 2 s for streams to pass the frees queued on them. A block
// that still contains an allocation or memory in use stays leased and mapped until the process ends: unmapping it would
// pull the memory from under the GPU.
//
// In the child of a plain fork() every call fails with kFailedPrecondition, and no memory is given back.
class Arena {
 public:
  // Leases the first chunk, so that an arena that cannot work fails here.
  // Errors: INVALID_FIELD for the options; otherwise as Allocate().
  static absl::StatusOr<std::shared_ptr<Arena>> Create(const std::shared_ptr<Session>& session,
                                                       ArenaOptions options = {});

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Allocates at least `bytes`, for use on `stream`.
  // Returns: a host address, or for CUDA memory a device address.
  // Errors: INVALID_FIELD for 0 bytes; OUT_OF_RANGE above 64 TiB; OVER_BUDGET of layer "arena" above the limit; STALE
  // when the device's memory was lost or the session is over: free everything, call Trim(), and allocate again. If the
  // arena must lease a block: the errors of Block::Allocate() and Block::Map(). Before it fails for lack of memory, the
  // arena returns its free memory and requests the block again.
  absl::StatusOr<void*> Allocate(Bytes bytes, ArenaStream stream = ArenaStream::kDefault);

  // Frees an address that Allocate() returned, in the order of `stream`, which may differ from the allocation's stream.
  // Errors, each with nothing changed: NOT_FOUND for an address outside this arena; STALE for an address inside the
  // arena where no allocation starts, or where the allocation was already freed.
  absl::Status Free(void* pointer, ArenaStream stream = ArenaStream::kDefault);

  // Records that work on `stream` uses the allocation too. The memory is not reused, not even on the freeing stream,
  // before `stream` has passed the moment of the free. Costs a driver call at the free.
  // Errors: as Free().
  absl::Status UsedOn(void* pointer, ArenaStream stream);

  // Drops a stream, and makes the memory freed on it available to every other stream. Call it before the stream is
  // destroyed: a new stream may get the same number. Requires: all work on the stream is done, and no concurrent call
  // names it.
  void ForgetStream(ArenaStream stream);

  // Returns to the daemon every chunk that contains no allocated, cached or used memory. Does not wait for streams: a
  // chunk in use by a running stream stays.
  // Returns: the bytes returned. Errors: those of StreamProgress.
  absl::StatusOr<Bytes> Trim();

  ArenaStats Stats() const;

  // The kind of memory that the arena leases.
  BlockKind kind() const;
  Bytes alignment() const;

 private:
  Arena(std::unique_ptr<internal::ArenaCore> core, BlockKind kind);

  const std::unique_ptr<internal::ArenaCore> core_;
  const BlockKind kind_;
};

// One allocation of an arena; the destructor frees it. Move-only. Thread-compatible.
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

  // Null after a move or Free().
  void* data() const { return data_; }
  // As requested.
  Bytes size() const { return size_; }
  // The stream on which the buffer will be freed; by default the stream it was allocated on. Before set_stream(), the
  // caller makes the new stream wait for the old one, or calls UsedOn() with the old one.
  ArenaStream stream() const { return stream_; }
  void set_stream(ArenaStream stream) { stream_ = stream; }

  // As Arena::UsedOn().
  absl::Status UsedOn(ArenaStream stream) const { return arena_->UsedOn(data_, stream); }

  // Frees the buffer now. Idempotent. Errors: as Arena::Free().
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

#endif  // BERTH_ARENA_H_
