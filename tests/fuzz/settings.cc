// The configuration file.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "daemon/config/settings.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {

std::vector<std::string> Seeds() {
  return {
      "[pools.gpu-tests]\ncap = 4\ntenant_cap = 3\ndevice_caps = {GPU-0f1a = 1}\nageing = \"10m\"\n"
      "hold_warning = \"1h\"\nhold_limit = \"2h\"\nweights = {1000 = 3, 1001 = 1}\n[pools.wide]\ncap = 8\n",
      "[memory]\ndevice_budget = \"100GiB\"\ntenant_budget = \"50GiB\"\nwarm_blocks = 2\nwarm_limit = \"1GiB\"\n"
      "cuda_ipc = true\npermit_reserve = \"1GiB\"\n[workers]\ncall_deadline = \"10s\"\ncontext_idle = \"30s\"\n",
      "[log]\nfile = \"/var/log/berth/memory.jsonl\"\nfences = true\n[modules]\ntotal = \"256MiB\"\n"
      "compile_patience = \"2m\"\n[limits]\nconnections = 4096\nimports_per_process = 4096\nstreams_per_device = 16\n",
      // toml++ accepted this as a key.
      "[@]"};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = ::memfd_create("settings", MFD_CLOEXEC);
  if (::ftruncate(file, 0) < 0 || ::pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  const absl::StatusOr<berth::Settings> settings = berth::ReadSettings(absl::StrCat("/proc/self/fd/", file));
  if (settings.ok()) berth::BuildConfig(1, 1, std::vector<berth::DeviceRecord>(1), *settings);
  return 0;
}
