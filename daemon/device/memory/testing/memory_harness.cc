#include "daemon/device/memory/testing/memory_harness.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <berth/bytes.h>

#include "absl/base/thread_annotations.h"
#include "common/cuda/device_mapping.h"
#include "common/cuda/driver.h"
#include "common/cuda/testing/fake_driver.h"
#include "common/mutex.h"
#include "common/os/named_memory.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "daemon/device/memory/device_runtime.h"
#include "daemon/device/memory/direct_backend.h"
#include "daemon/device/memory/host_backend.h"
#include "daemon/device/memory/named_backend.h"
#include "daemon/device/memory/vmm_backend.h"

namespace berth {
namespace {

constexpr Bytes kHostBytes = MiB(512);

using Opened = absl::StatusOr<std::unique_ptr<MemoryResource>>;

class HostHarness : public MemoryHarness {
 public:
  HostHarness() : HostHarness("Host") {}

  Opened Open() override { return std::make_unique<HostBackend>("HOST-0", kHostBytes); }

  absl::StatusOr<std::string> Read(const MemoryBlock& block, uint64_t offset, size_t size) override {
    std::string text(size, '?');
    const ssize_t got = ::pread(block.fd.get(), text.data(), size, static_cast<off_t>(offset));
    if (got != static_cast<ssize_t>(size)) return OsError("pread", errno);
    return text;
  }

  absl::Status Write(const MemoryBlock& block, uint64_t offset, absl::string_view text) override {
    const ssize_t put = ::pwrite(block.fd.get(), text.data(), text.size(), static_cast<off_t>(offset));
    if (put != static_cast<ssize_t>(text.size())) return OsError("pwrite", errno);
    return absl::OkStatus();
  }

 protected:
  explicit HostHarness(std::string name) : MemoryHarness(std::move(name)) {}
};

class NamedHarness : public MemoryHarness {
 public:
  NamedHarness() : NamedHarness("Named") {}

  Opened Open() override {
    // A socket serves one backend, and other backends may be open.
    static std::atomic<uint32_t> opened = 0;
    const uint32_t ordinal = (static_cast<uint32_t>(::getpid()) << 8) + opened++;
    BERTH_ASSIGN_OR_RETURN(std::unique_ptr<MemoryResource> backend,
                           NamedBackend::Open(Folder(), ordinal, "HOST-0", kHostBytes));
    return backend;
  }

  absl::StatusOr<std::string> Read(const MemoryBlock& block, uint64_t offset, size_t size) override {
    BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, OpenNamedMemory(Folder(), *block.handle));
    std::string text(size, '?');
    const ssize_t got = ::pread(fd.get(), text.data(), size, static_cast<off_t>(offset));
    if (got != static_cast<ssize_t>(size)) return OsError("pread", errno);
    return text;
  }

  absl::Status Write(const MemoryBlock& block, uint64_t offset, absl::string_view text) override {
    BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, OpenNamedMemory(Folder(), *block.handle));
    const ssize_t put = ::pwrite(fd.get(), text.data(), text.size(), static_cast<off_t>(offset));
    if (put != static_cast<ssize_t>(text.size())) return OsError("pwrite", errno);
    return absl::OkStatus();
  }

 protected:
  explicit NamedHarness(std::string name) : MemoryHarness(std::move(name)) {}

 private:
  // One folder for all processes of a test program; the process that created it removes it.
  static std::string Folder() {
    struct Owned {
      Owned() {
        if (::mkdtemp(path.data()) != nullptr) ::setenv(kFolderVariable, path.c_str(), 1);
      }
      ~Owned() { std::filesystem::remove_all(path); }
      std::string path = "/tmp/berth-named-XXXXXX";
    };
    static const std::unique_ptr<Owned> owned =
        ::getenv(kFolderVariable) == nullptr ? std::make_unique<Owned>() : nullptr;
    return ::getenv(kFolderVariable);
  }
  static constexpr char kFolderVariable[] = "BERTH_TEST_NAMED_FOLDER";
};

// Accesses memory from the device's primary context, which it retains until the process ends.
class CudaHarness : public MemoryHarness {
 protected:
  explicit CudaHarness(std::string name) : MemoryHarness(std::move(name)) {}

  absl::StatusOr<cuda::Driver*> EnterContext() {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, OpenDriver());
    MutexLock lock(&mu_);
    if (context_ == nullptr) {
      BERTH_ASSIGN_OR_RETURN(context_, driver->RetainPrimaryContext(0));
    }
    BERTH_RETURN_IF_ERROR(driver->SetCurrentContext(context_));
    return driver;
  }

  virtual absl::StatusOr<cuda::Driver*> OpenDriver() { return cuda::Driver::Get(); }

  static absl::StatusOr<std::string> ReadAt(cuda::Driver& driver, cuda::DevicePointer at, size_t size) {
    std::string text(size, '?');
    BERTH_RETURN_IF_ERROR(driver.CopyToHost(std::as_writable_bytes(std::span(text)), at));
    return text;
  }

  static absl::Status WriteAt(cuda::Driver& driver, cuda::DevicePointer at, absl::string_view text) {
    BERTH_RETURN_IF_ERROR(driver.CopyToDevice(at, std::as_bytes(std::span(text.data(), text.size()))));
    return driver.SynchronizeContext();
  }

 private:
  Mutex mu_;
  cuda::Context context_ ABSL_GUARDED_BY(mu_) = nullptr;
};

class VmmHarness : public CudaHarness {
 public:
  VmmHarness() : VmmHarness("CudaVmm") {}

  Opened Open() override {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, OpenDriver());
    return VmmBackend::Open(*driver, 0);
  }

  absl::StatusOr<std::string> Read(const MemoryBlock& block, uint64_t offset, size_t size) override {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, EnterContext());
    BERTH_ASSIGN_OR_RETURN(const cuda::DeviceMapping mapping,
                           cuda::DeviceMapping::Map(*driver, block.fd.get(), block.bytes, 0, true));
    return ReadAt(*driver, mapping.ptr() + offset, size);
  }

  absl::Status Write(const MemoryBlock& block, uint64_t offset, absl::string_view text) override {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, EnterContext());
    BERTH_ASSIGN_OR_RETURN(const cuda::DeviceMapping mapping,
                           cuda::DeviceMapping::Map(*driver, block.fd.get(), block.bytes, 0, false));
    return WriteAt(*driver, mapping.ptr() + offset, text);
  }

 protected:
  explicit VmmHarness(std::string name) : CudaHarness(std::move(name)) {}
};

// Accesses own blocks at their addresses, and blocks of another process by their handles.
class DirectHarness : public CudaHarness {
 public:
  DirectHarness() : DirectHarness("CudaDirect") {}

  Opened Open() override {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, OpenDriver());
    return DirectBackend::Open(*driver, 0);
  }

  absl::StatusOr<std::string> Read(const MemoryBlock& block, uint64_t offset, size_t size) override {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, EnterContext());
    if (block.address != 0) return ReadAt(*driver, block.address + offset, size);
    BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer opened, driver->OpenIpcHandle(*block.handle));
    absl::StatusOr<std::string> text = ReadAt(*driver, opened + offset, size);
    BERTH_RETURN_IF_ERROR(driver->CloseIpcHandle(opened));
    return text;
  }

  absl::Status Write(const MemoryBlock& block, uint64_t offset, absl::string_view text) override {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, EnterContext());
    return WriteAt(*driver, block.address + offset, text);
  }

 protected:
  explicit DirectHarness(std::string name) : CudaHarness(std::move(name)) {}
};

class FakeDirectHarness : public DirectHarness {
 public:
  FakeDirectHarness() : FakeDirectHarness("FakeDirect") {}
  bool is_fake() const override { return true; }

 protected:
  explicit FakeDirectHarness(std::string name) : DirectHarness(std::move(name)) {}
  absl::StatusOr<cuda::Driver*> OpenDriver() override { return &driver_; }

 private:
  cuda::FakeDriver driver_;
};

// Wraps a harness so that it opens the whole stack.
template <typename Harness>
class StackOf : public Harness {
 public:
  explicit StackOf(std::string name) : Harness(std::move(name)) {}

  Opened Open() override {
    BERTH_ASSIGN_OR_RETURN(std::unique_ptr<MemoryResource> backend, Harness::Open());
    return DeviceRuntime::Compose(std::move(backend), {});
  }
};

}  // namespace

const std::vector<MemoryHarness*>& MemoryHarness::All() {
  static const auto* const kAll = new std::vector<MemoryHarness*>{
      new HostHarness,       new StackOf<HostHarness>("HostStack"),
      new NamedHarness,      new StackOf<NamedHarness>("NamedStack"),
      new FakeDirectHarness, new StackOf<FakeDirectHarness>("FakeDirectStack"),
      new VmmHarness,        new StackOf<VmmHarness>("CudaVmmStack"),
      new DirectHarness,     new StackOf<DirectHarness>("CudaDirectStack")};
  return *kAll;
}

}  // namespace berth
