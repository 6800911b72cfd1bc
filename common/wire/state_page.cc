#include "common/wire/state_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth {

absl::StatusOr<UniqueFd> CreateStatePage() {
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("berth-state", sizeof(StatePageLayout)));
  const uint64_t magic = StatePageLayout::kMagic;
  if (::pwrite(fd.get(), &magic, sizeof(magic), 0) != sizeof(magic))
    return OsError("pwrite(state page)", errno);
  BERTH_RETURN_IF_ERROR(SealMemfd(fd.get()));
  return fd;
}

absl::StatusOr<StatePage> StatePage::Map(int fd, int protection) {
  struct stat info;
  if (::fstat(fd, &info) < 0) return OsError("fstat(state page)", errno);
  if (info.st_size != sizeof(StatePageLayout)) {
    return absl::InvalidArgumentError(absl::StrCat("a state page of ", info.st_size, " bytes"));
  }
  void* const at = ::mmap(nullptr, sizeof(StatePageLayout), protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return OsError("mmap(state page)", errno);
  StatePage page(static_cast<StatePageLayout*>(at));
  if (page->magic != StatePageLayout::kMagic) return absl::InvalidArgumentError("not a state page");
  return page;
}

absl::StatusOr<StatePage> StatePage::MapReadOnly(int fd) { return Map(fd, PROT_READ); }

absl::StatusOr<StatePage> StatePage::MapWritable(int fd) { return Map(fd, PROT_READ | PROT_WRITE); }

StatePage::~StatePage() {
  if (layout_ != nullptr) ::munmap(layout_, sizeof(StatePageLayout));
}

}  // namespace berth
