#include "client/internal/mapped_memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/cuda/device_mapping.h"
#include "common/cuda/driver.h"
#include "common/error.h"
#include "common/os_error.h"
#include "common/status_macros.h"

namespace berth::internal {
namespace {

class HostMemory final : public MappedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<MappedMemory>> Map(const v1::Block& block, int fd, bool read_only) {
    struct stat info;
    if (::fstat(fd, &info) < 0) return OsError("fstat(block)", errno);
    if (static_cast<uint64_t>(info.st_size) < block.bytes()) {
      return absl::DataLossError(absl::StrCat("block ", block.handle().block(), ": ", block.bytes(),
                                              " bytes, its fd has ", info.st_size));
    }
    const int protection = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    void* const address = ::mmap(nullptr, block.bytes(), protection, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) return OsError("mmap(block)", errno);
    return std::unique_ptr<MappedMemory>(new HostMemory(address, block.bytes()));
  }
  ~HostMemory() override { ::munmap(address_, bytes_); }
  void* address() const override { return address_; }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  HostMemory(void* address, uint64_t bytes) : address_(address), bytes_(bytes) {}
  void* const address_;
  const uint64_t bytes_;
};

class CudaMemory final : public MappedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<MappedMemory>> Map(const v1::Block& block, int fd, bool read_only) {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver * driver, cuda::Driver::Get());
    BERTH_ASSIGN_OR_RETURN(const int ordinal, cuda::FindDevice(*driver, block.handle().device_uuid()));
    BERTH_ASSIGN_OR_RETURN(cuda::DeviceMapping mapping,
                           cuda::DeviceMapping::Map(fd, Bytes(block.bytes()), ordinal, read_only));
    return std::unique_ptr<MappedMemory>(new CudaMemory(driver, ordinal, std::move(mapping)));
  }
  void* address() const override { return reinterpret_cast<void*>(mapping_.ptr()); }
  absl::Status Synchronize() override {
    BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver_->RetainPrimaryContext(ordinal_));
    absl::Status status = driver_->SetCurrentContext(context);
    if (status.ok()) status = driver_->SynchronizeContext();
    driver_->ReleasePrimaryContext(ordinal_).IgnoreError();
    return status;
  }

 private:
  CudaMemory(cuda::Driver* driver, int ordinal, cuda::DeviceMapping mapping)
      : driver_(driver), ordinal_(ordinal), mapping_(std::move(mapping)) {}
  cuda::Driver* const driver_;
  const int ordinal_;
  cuda::DeviceMapping mapping_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MappedMemory>> MapMemory(const v1::Block& block, int fd, bool read_only) {
  switch (block.kind()) {
    case v1::MEMORY_KIND_HOST:
      return HostMemory::Map(block, fd, read_only);
    case v1::MEMORY_KIND_CUDA_VMM:
      return CudaMemory::Map(block, fd, read_only);
    default:
      return Refuse(Reason::kUnsupported, "this build of the SDK cannot map memory of kind {capability}",
                    {{"capability", v1::MemoryKind_Name(block.kind())}});
  }
}

}  // namespace berth::internal
