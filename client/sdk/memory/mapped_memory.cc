#include "client/sdk/memory/mapped_memory.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/devices/device_choice.h"
#include "common/cuda/device_mapping.h"
#include "common/cuda/driver.h"
#include "common/cuda/ipc_mapping.h"
#include "common/os/named_memory.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth::internal {
namespace {

class HostMemory final : public MappedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<MappedMemory>> Map(const v1::Block& block, int fd, bool read_only) {
    struct stat info;
    if (::fstat(fd, &info) < 0) return OsError("fstat(block)", errno);
    if (static_cast<uint64_t>(info.st_size) < block.bytes()) {
      return absl::DataLossError(
          absl::StrCat("block ", block.handle().block(), ": ", block.bytes(), " bytes, but its fd has ", info.st_size));
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

// Device memory, mapped from an fd (cuda::DeviceMapping) or opened by a handle (cuda::IpcMapping).
template <typename DriverMapping>
class CudaMemory final : public MappedMemory {
 public:
  CudaMemory(cuda::Driver* driver, int ordinal, DriverMapping mapping)
      : driver_(driver), ordinal_(ordinal), mapping_(std::move(mapping)) {}
  void* address() const override { return reinterpret_cast<void*>(mapping_.ptr()); }
  absl::Status Synchronize() override {
    BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver_->RetainPrimaryContext(ordinal_));
    absl::Status status = driver_->SetCurrentContext(context);
    if (status.ok()) status = driver_->SynchronizeContext();
    driver_->ReleasePrimaryContext(ordinal_).IgnoreError();
    return status;
  }

 private:
  cuda::Driver* const driver_;
  const int ordinal_;
  DriverMapping mapping_;
};

absl::StatusOr<std::unique_ptr<MappedMemory>> MapVmm(const v1::Block& block, int fd, bool read_only,
                                                     const std::string& device) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  BERTH_ASSIGN_OR_RETURN(const int ordinal, ChooseDevice(*driver, block.handle().device_uuid(), device));
  BERTH_ASSIGN_OR_RETURN(cuda::DeviceMapping mapping,
                         cuda::DeviceMapping::Map(fd, Bytes(block.bytes()), ordinal, read_only));
  return std::make_unique<CudaMemory<cuda::DeviceMapping>>(driver, ordinal, std::move(mapping));
}

absl::StatusOr<std::unique_ptr<MappedMemory>> OpenDirect(const v1::Block& block, const IpcHandle& handle,
                                                         const std::string& device) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  BERTH_ASSIGN_OR_RETURN(const int ordinal, ChooseDevice(*driver, block.handle().device_uuid(), device));
  BERTH_ASSIGN_OR_RETURN(cuda::IpcMapping mapping, cuda::IpcMapping::Open(*driver, handle, ordinal));
  return std::make_unique<CudaMemory<cuda::IpcMapping>>(driver, ordinal, std::move(mapping));
}

absl::Status UnknownKind(const v1::Block& block) {
  return Refuse(Reason::kUnsupported, "this build of the SDK cannot map memory of kind {capability}",
                {{"capability", v1::MemoryKind_Name(block.kind())}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedMemory>> MapMemory(const v1::Block& block, int fd, bool read_only,
                                                        const std::string& device) {
  switch (block.kind()) {
    case v1::MEMORY_KIND_HOST:
      return HostMemory::Map(block, fd, read_only);
    case v1::MEMORY_KIND_CUDA_VMM:
      return MapVmm(block, fd, read_only, device);
    default:
      return UnknownKind(block);
  }
}

absl::StatusOr<std::unique_ptr<MappedMemory>> OpenMemory(const v1::Block& block, const IpcHandle& handle,
                                                         const std::string& folder,
                                                         const std::string& device) {
  switch (block.kind()) {
    case v1::MEMORY_KIND_HOST: {
      BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, OpenNamedMemory(folder, handle));
      return HostMemory::Map(block, fd.get(), /*read_only=*/false);
    }
    case v1::MEMORY_KIND_CUDA_DIRECT:
      return OpenDirect(block, handle, device);
    default:
      return UnknownKind(block);
  }
}

}  // namespace berth::internal
