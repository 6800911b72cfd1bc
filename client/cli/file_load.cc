#include "client/cli/file_load.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "client/sdk/memory/registered_memory.h"
#include "common/cuda/current_context.h"
#include "common/mutex.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "common/thread.h"

namespace berth::cli {
namespace {

// A part of the file.
struct Chunk {
  uint64_t at = 0;
  size_t bytes = 0;
};

// Distributes a file's chunks among threads, and stores the first error. Thread-safe.
class Chunks {
 public:
  Chunks(uint64_t size, uint64_t chunk) : size_(size), chunk_(chunk) {}

  // Returns nothing at the end, or after a chunk has failed.
  std::optional<Chunk> Next() {
    if (failed_.load(std::memory_order_relaxed)) return std::nullopt;
    const uint64_t at = next_.fetch_add(1, std::memory_order_relaxed) * chunk_;
    if (at >= size_) return std::nullopt;
    return Chunk{.at = at, .bytes = static_cast<size_t>(std::min(chunk_, size_ - at))};
  }
  uint64_t count() const { return (size_ + chunk_ - 1) / chunk_; }
  void Fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (status_.ok()) status_ = std::move(why);
    failed_ = true;
  }
  absl::Status status() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  const uint64_t size_;
  const uint64_t chunk_;
  std::atomic<uint64_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

absl::Status Read(int file, const Chunk& chunk, std::byte* to) {
  for (size_t done = 0; done < chunk.bytes;) {
    const ssize_t got = ::pread(file, to + done, chunk.bytes - done, static_cast<off_t>(chunk.at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return OsError("read", errno);
    if (got == 0) return absl::DataLossError(absl::StrCat("the file ends at byte ", chunk.at + done));
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

size_t UsableCores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof(cores), &cores) < 0) return 1;
  return static_cast<size_t>(CPU_COUNT(&cores));
}

// Runs `take` on several threads, including the calling thread, until no chunk is left.
absl::Status TakeAll(Chunks& chunks, const LoadOptions& options, absl::FunctionRef<absl::Status()> take) {
  const size_t most = std::min({options.threads, UsableCores(), static_cast<size_t>(chunks.count())});
  const auto run = [&] {
    if (absl::Status status = take(); !status.ok()) chunks.Fail(std::move(status));
  };
  std::vector<Thread> others;
  while (others.size() + 1 < most) {
    absl::StatusOr<Thread> other = Thread::Start("a part of the file", run);
    // If no further thread can be started, the existing threads read the file.
    if (!other.ok()) break;
    others.push_back(*std::move(other));
  }
  run();
  for (Thread& other : others) other.join();
  return chunks.status();
}

// Anonymous memory in whole pages.
class Pages {
 public:
  static absl::StatusOr<Pages> Map(size_t bytes) {
    void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return OsError("mmap", errno);
    // Pinning works page by page, also with small pages.
    ::madvise(address, bytes, MADV_HUGEPAGE);
    return Pages(address, bytes);
  }
  Pages(Pages&& other) noexcept : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}
  Pages& operator=(Pages&&) = delete;
  ~Pages() {
    if (address_ != nullptr) ::munmap(address_, bytes_);
  }
  std::byte* data() const { return static_cast<std::byte*>(address_); }

 private:
  Pages(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  void* address_;
  size_t bytes_;
};

// A stream owned by this object; the destructor waits for the queued work.
class OwnStream {
 public:
  static absl::StatusOr<OwnStream> Create(cuda::Driver& driver) {
    BERTH_ASSIGN_OR_RETURN(const cuda::Stream stream, driver.CreateStream());
    return OwnStream(driver, stream);
  }
  OwnStream(OwnStream&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)), stream_(other.stream_) {}
  OwnStream& operator=(OwnStream&&) = delete;
  ~OwnStream() {
    if (driver_ == nullptr) return;
    driver_->SynchronizeStream(stream_).IgnoreError();
    driver_->DestroyStream(stream_).IgnoreError();
  }
  cuda::Stream get() const { return stream_; }

 private:
  OwnStream(cuda::Driver& driver, cuda::Stream stream) : driver_(&driver), stream_(stream) {}
  cuda::Driver* driver_;
  cuda::Stream stream_;
};

// One thread's part of a load to a device.
absl::Status TakeToDevice(cuda::Driver& driver, cuda::Context context, int file, cuda::DevicePointer to,
                          uint64_t buffer_bytes, Chunks& chunks) {
  BERTH_ASSIGN_OR_RETURN(const cuda::CurrentContext current, cuda::CurrentContext::Enter(driver, context));
  BERTH_ASSIGN_OR_RETURN(const Pages pages, Pages::Map(2 * buffer_bytes));
  // If the memory cannot be pinned, the copies are still correct, but slower.
  const absl::StatusOr<internal::RegisteredMemory> pinned =
      internal::RegisteredMemory::Register(driver, pages.data(), Bytes(2 * buffer_bytes), /*read_only=*/false);
  // One stream per buffer: when the stream is idle, the buffer's copy has ended. Declared after the pages, so that the
  // copies have ended before the pages are unmapped.
  BERTH_ASSIGN_OR_RETURN(const OwnStream first, OwnStream::Create(driver));
  BERTH_ASSIGN_OR_RETURN(const OwnStream second, OwnStream::Create(driver));
  const std::array<cuda::Stream, 2> streams = {first.get(), second.get()};
  for (size_t turn = 0;; turn ^= 1) {
    const std::optional<Chunk> chunk = chunks.Next();
    if (!chunk.has_value()) break;
    std::byte* const buffer = pages.data() + turn * buffer_bytes;
    BERTH_RETURN_IF_ERROR(driver.SynchronizeStream(streams[turn]));
    BERTH_RETURN_IF_ERROR(Read(file, *chunk, buffer));
    BERTH_RETURN_IF_ERROR(
        driver.CopyToDeviceAsync(to + chunk->at, std::span<const std::byte>(buffer, chunk->bytes), streams[turn]));
  }
  for (const cuda::Stream stream : streams) BERTH_RETURN_IF_ERROR(driver.SynchronizeStream(stream));
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadToHost(int file, std::span<std::byte> to, const LoadOptions& options) {
  Chunks chunks(to.size(), options.chunk.count());
  return TakeAll(chunks, options, [&]() -> absl::Status {
    while (const std::optional<Chunk> chunk = chunks.Next()) {
      BERTH_RETURN_IF_ERROR(Read(file, *chunk, to.data() + chunk->at));
    }
    return absl::OkStatus();
  });
}

absl::Status LoadToDevice(cuda::Driver& driver, cuda::Context context, int file, Bytes size, cuda::DevicePointer to,
                          const LoadOptions& options) {
  Chunks chunks(size.count(), options.chunk.count());
  // A small file needs no larger pinned buffer than itself.
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t buffer = std::min(options.chunk.count(), (size.count() + page - 1) / page * page);
  return TakeAll(chunks, options, [&] { return TakeToDevice(driver, context, file, to, buffer, chunks); });
}

}  // namespace berth::cli
