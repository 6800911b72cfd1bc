#include "common/wire/fence_page.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth {

absl::StatusOr<UniqueFd> CreateFencePage(ChannelId channel) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("berth-fence", sizeof(FencePageLayout)));
  const uint64_t head[2] = {FencePageLayout::kMagic, channel.value()};
  if (::pwrite(fd.get(), head, sizeof(head), 0) != sizeof(head)) return OsError("pwrite(fence page)", errno);
  BERTH_RETURN_IF_ERROR(SealMemfd(fd.get()));
  return fd;
}

absl::StatusOr<FencePage> FencePage::Map(int fd, int protection) {
  struct stat info;
  if (::fstat(fd, &info) < 0) return OsError("fstat(fence page)", errno);
  if (info.st_size != sizeof(FencePageLayout)) {
    return absl::InvalidArgumentError(absl::StrCat("a fence page of ", info.st_size, " bytes"));
  }
  void* const at = ::mmap(nullptr, sizeof(FencePageLayout), protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return OsError("mmap(fence page)", errno);
  FencePage page(static_cast<FencePageLayout*>(at));
  if (page.layout_->magic != FencePageLayout::kMagic) return absl::InvalidArgumentError("not a fence page");
  return page;
}

absl::StatusOr<FencePage> FencePage::MapReadOnly(int fd) { return Map(fd, PROT_READ); }

absl::StatusOr<FencePage> FencePage::MapWritable(int fd) { return Map(fd, PROT_READ | PROT_WRITE); }

FencePage::~FencePage() {
  if (layout_ != nullptr) ::munmap(layout_, sizeof(FencePageLayout));
}

void FencePage::SetTop() {
  for (FenceSlot& slot : layout_->slots) slot.done.store(kFenceTop, std::memory_order_release);
}

}  // namespace berth
