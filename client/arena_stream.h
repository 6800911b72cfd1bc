// Streams as an arena sees them: in what order memory that was freed may be used again, and how far that
// order has come.

#ifndef CLIENT_ARENA_STREAM_H_
#define CLIENT_ARENA_STREAM_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace berth {

// A stream, by the number under which its user and its StreamProgress know it: for CUDA the CUstream itself.
enum class ArenaStream : uint64_t { kDefault = 0 };

// StreamProgress says how far streams have come. Implementations are thread-safe.
class StreamProgress {
 public:
  // A place in the order of one stream.
  using Point = uint64_t;

  virtual ~StreamProgress() = default;

  // Marks where `stream` is now, without waiting for it. The point is reached when all work queued on the
  // stream before this call is done. Errors: those of the driver.
  virtual absl::StatusOr<Point> Mark(ArenaStream stream) = 0;

  // Whether a point that Mark(stream) gave is reached; once it is, it stays so. Never waits.
  virtual absl::StatusOr<bool> Reached(ArenaStream stream, Point point) = 0;

  // Drops what is known of `stream`: nothing is asked about its points any more.
  // Requires: all work on it is done.
  virtual void Forget(ArenaStream stream) = 0;
};

// For memory that only the calling threads use: whoever frees is done, so every point is reached at once.
class ImmediateProgress : public StreamProgress {
 public:
  absl::StatusOr<Point> Mark(ArenaStream) override { return 0; }
  absl::StatusOr<bool> Reached(ArenaStream, Point) override { return true; }
  void Forget(ArenaStream) override {}
};

}  // namespace berth

#endif  // CLIENT_ARENA_STREAM_H_
