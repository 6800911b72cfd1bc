// Loads a file's bytes into memory with several threads. One core that copies from the page cache page by page reaches
// a tenth of the bandwidth of the link to a device.

#ifndef CLIENT_CLI_FILE_LOAD_H_
#define CLIENT_CLI_FILE_LOAD_H_

#include <cstddef>
#include <span>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "common/cuda/driver.h"

namespace berth::cli {

struct LoadOptions {
  // Number of threads; fewer if this process may use fewer cores, or the file is small.
  size_t threads = 8;
  // Bytes read at once. For a device, each thread has two pinned buffers of this size: it fills one while the other is
  // copied.
  Bytes chunk = MiB(4);
};

// Reads the first `to.size()` bytes of `file` directly into `to`. After an error the content of `to` is unspecified.
// Errors: kDataLoss if the file is shorter; the system's.
absl::Status LoadToHost(int file, std::span<std::byte> to, const LoadOptions& options = {});

// Reads the first `size` bytes of `file` into memory of the device, in `context`; the copy is complete at return.
// Errors: as LoadToHost(); those of `driver`.
absl::Status LoadToDevice(cuda::Driver& driver, cuda::Context context, int file, Bytes size, cuda::DevicePointer to,
                          const LoadOptions& options = {});

}  // namespace berth::cli

#endif  // CLIENT_CLI_FILE_LOAD_H_
