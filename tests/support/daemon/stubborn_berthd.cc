// berthd on host memory whose driver fails as long as the file named by $BERTH_STUBBORN_WHILE exists. The file's line
// says how: "allocate BYTES" and "release" end the worker that does so, any other line is an error of each release.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "common/cuda/driver_code.h"
#include "common/status_macros.h"
#include "daemon/config/options.h"
#include "daemon/device/memory/device_runtime.h"
#include "daemon/device/memory/host_backend.h"
#include "daemon/device/memory/memory_decorator.h"
#include "daemon/server/roles.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class StubbornResource final : public MemoryDecorator {
 public:
  StubbornResource(std::unique_ptr<MemoryResource> inner, std::string path)
      : MemoryDecorator(std::move(inner)), path_(std::move(path)) {}

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override {
    EndIf(absl::StrCat("allocate ", bytes.count()));
    return MemoryDecorator::Allocate(bytes, tag);
  }
  absl::Status Deallocate(MemoryBlock& block) override {
    if (::access(path_.c_str(), F_OK) != 0) return MemoryDecorator::Deallocate(block);
    EndIf("release");
    // An error after which a worker continues.
    return Refuse(Reason::kDriver, "{call}: {name} ({driver_code})",
                  {{"call", "cuMemRelease"},
                   {"name", "CUDA_ERROR_NOT_PERMITTED"},
                   {"driver_code", static_cast<int>(cuda::DriverCode::kNotPermitted)}});
  }

 private:
  void EndIf(const std::string& call) const {
    std::string line;
    std::ifstream file(path_);
    if (std::getline(file, line) && line == call) ::kill(::getpid(), SIGKILL);
  }

  const std::string path_;
};

absl::StatusOr<std::unique_ptr<DeviceRuntime>> Open(const DeviceSpec& spec, const RuntimeOptions& options) {
  const char* const path = getenv("BERTH_STUBBORN_WHILE");
  if (path == nullptr) return absl::InvalidArgumentError("BERTH_STUBBORN_WHILE is not set");
  BERTH_ASSIGN_OR_RETURN(std::unique_ptr<MemoryResource> backend, OpenBackend(spec));
  return DeviceRuntime::Compose(std::make_unique<StubbornResource>(std::move(backend), path), options);
}

int Main(int argc, char** argv) {
  Options options;
  if (const std::optional<int> code = ParseOptions(argc, argv, &options); code.has_value()) return *code;
  if (options.role == Role::kSupervisor) return RunSupervisorRole(options);
  if (options.role == Role::kWorker || options.role == Role::kContextWorker)
    return RunWorkerRole(options, Open);
  // Everything else is unchanged.
  ::execv(ProgramPath("daemon/berthd").c_str(), argv);
  perror("execv");
  return 1;
}

}  // namespace
}  // namespace berth::testing

int main(int argc, char** argv) { return berth::testing::Main(argc, argv); }
