// Streams as an arena sees them: the order in which freed memory may be reused, and how far a stream has come.

#ifndef BERTH_ARENA_STREAM_H_
#define BERTH_ARENA_STREAM_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace berth {

// A stream, by the number that its user and its StreamProgress use: for CUDA the CUstream value.
enum class ArenaStream : uint64_t { kDefault = 0 };

// Reports how far streams have come. Implementations are thread-safe.
class StreamProgress {
 public:
  // A position in the order of one stream.
  using Point = uint64_t;

  virtual ~StreamProgress() = default;

  // Marks the current position of `stream`, without waiting for the stream. The point is reached when all work queued
  // on the stream before this call is done. Errors: those of the driver.
  virtual absl::StatusOr<Point> Mark(ArenaStream stream) = 0;

  // Returns whether a point from Mark(stream) is reached. A reached point stays reached. Never waits.
  virtual absl::StatusOr<bool> Reached(ArenaStream stream, Point point) = 0;

  // Drops all state of `stream`; no later call names its points.
  // Requires: all work on the stream is done.
  virtual void Forget(ArenaStream stream) = 0;
};

// The progress of memory that only threads use: a thread frees memory after its last use, so every point is reached at
// once.
class ImmediateProgress : public StreamProgress {
 public:
  absl::StatusOr<Point> Mark(ArenaStream) override { return 0; }
  absl::StatusOr<bool> Reached(ArenaStream, Point) override { return true; }
  void Forget(ArenaStream) override {}
};

}  // namespace berth

#endif  // BERTH_ARENA_STREAM_H_
