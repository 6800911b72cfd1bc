// ArchiveOrigin: the program that wrote an archive.

#ifndef DAEMON_BASE_ARCHIVE_ORIGIN_H_
#define DAEMON_BASE_ARCHIVE_ORIGIN_H_

#include <cstdint>

#include "absl/time/time.h"

namespace berth {

// Describes the program that wrote the bytes, if it is not this one.
struct ArchiveOrigin {
  // Schema version of the values, as the writing program counts it; Fields() may read it. 0 means this program's own.
  uint32_t schema = 0;
  // Added to every time that is read, because the writing program's clock has another origin.
  absl::Duration clock;
};

}  // namespace berth

#endif  // DAEMON_BASE_ARCHIVE_ORIGIN_H_
