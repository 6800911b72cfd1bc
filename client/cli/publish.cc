#include "client/cli/publish.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/block.h"
#include "common/cuda/driver.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace berth::cli {
namespace {

// Device memory cannot be read into: it goes through a buffer of this size.
constexpr size_t kStagingBytes = 8 << 20;

absl::Status Fill(int file, const Block& block, const Mapping& mapping, size_t size) {
  const bool host = mapping.kind() == BlockKind::kHost;
  cuda::Driver* driver = nullptr;
  if (!host) {
    BERTH_ASSIGN_OR_RETURN(driver, cuda::Driver::Get());
    BERTH_ASSIGN_OR_RETURN(const int ordinal, cuda::FindDevice(*driver, block.handle().device_uuid));
    BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver->RetainPrimaryContext(ordinal));
    BERTH_RETURN_IF_ERROR(driver->SetCurrentContext(context));
  }
  std::vector<std::byte> staging(host ? 0 : kStagingBytes);
  for (size_t at = 0; at < size;) {
    std::byte* const to = static_cast<std::byte*>(mapping.data()) + at;
    const ssize_t got = host ? ::read(file, to, size - at)
                             : ::read(file, staging.data(), std::min(staging.size(), size - at));
    if (got < 0) return OsError("read", errno);
    if (got == 0) return absl::DataLossError("the file ended early");
    if (!host) {
      BERTH_RETURN_IF_ERROR(driver->CopyToDevice(reinterpret_cast<uint64_t>(to),
                                                 std::span(staging.data(), static_cast<size_t>(got))));
    }
    at += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Bytes> PublishFile(const std::shared_ptr<Session>& session, const PublishOptions& options) {
  const UniqueFd file(::open(options.path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!file || ::fstat(file.get(), &info) < 0) return OsError(options.path, errno);
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(options.path, " is no file with anything in it"));
  }
  const Bytes size(static_cast<uint64_t>(info.st_size));
  BERTH_ASSIGN_OR_RETURN(
      Block block,
      Block::Allocate(session, {.bytes = size, .device = options.device, .label = options.name}));
  {
    BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
    BERTH_RETURN_IF_ERROR(Fill(file.get(), block, mapping, size.count()));
  }
  BERTH_RETURN_IF_ERROR(block.Publish(options.name));
  return size;
}

}  // namespace berth::cli
