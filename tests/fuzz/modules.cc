// Files in the folder of compiled modules: whatever their content, only a file that was written as a module is accepted
// as one, and an accepted module matches its record.

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/os/memfd.h"
#include "common/os/unique_fd.h"
#include "common/sha256.h"
#include "daemon/broker/module_files.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kModule = "the code of a module";

// A folder with one module in it, removed when the program ends.
class Folder {
 public:
  Folder() {
    char path[] = "/tmp/berth-modules-fuzz-XXXXXX";
    if (::mkdtemp(path) == nullptr) std::abort();
    path_ = path;
    absl::StatusOr<std::unique_ptr<ModuleFiles>> files = ModuleFiles::Open(path_);
    absl::StatusOr<UniqueFd> memory = CreateMemfd("module", kModule.size());
    if (!files.ok() || !memory.ok()) std::abort();
    files_ = *std::move(files);
    const ssize_t written = ::pwrite(memory->get(), kModule.data(), kModule.size(), 0);
    if (written != static_cast<ssize_t>(kModule.size())) std::abort();
    record_ = {.tenant = {.uid = 1000, .container = "/c"},
               .key = Sha256Of("key"),
               .architecture = "sm_90",
               .compiler = "NVRTC 12.9",
               .label = "gemm",
               .bytes = Bytes(kModule.size()),
               .content = Sha256Of(kModule)};
    if (!files_->Store(record_, memory->get()).ok()) std::abort();
    for (const auto& entry : fs::directory_iterator(path_ + "/modules")) {
      if (entry.path().extension() == ".module") file_ = entry.path();
    }
    std::ostringstream text;
    text << std::ifstream(file_, std::ios::binary).rdbuf();
    whole_ = text.str();
  }
  ~Folder() { fs::remove_all(path_); }

  // The content that was written first.
  const std::string& whole() const { return whole_; }

  // Replaces the file's content with those bytes and has it read.
  void Read(const std::string& bytes) {
    std::ofstream(file_, std::ios::binary | std::ios::trunc) << bytes;
    const absl::StatusOr<UniqueFd> loaded = files_->Load(record_);
    if (loaded.ok()) CheckSealed(loaded->get());
    const ModuleFiles::Contents contents = files_->Scan();
    // A file that is no valid module is removed.
    if (contents.records.size() + contents.corrupt != 1 || fs::exists(file_) == contents.records.empty()) std::abort();
    for (const core::ModuleRecord& record : contents.records) {
      const absl::StatusOr<UniqueFd> again = files_->Load(record);
      if (again.ok() && Sha256Of(kModule) != record.content) std::abort();
    }
  }

 private:
  static void CheckSealed(int fd) {
    std::string bytes(kModule.size() + 1, '\0');
    const ssize_t size = ::pread(fd, bytes.data(), bytes.size(), 0);
    if (size != static_cast<ssize_t>(kModule.size()) || !absl::StartsWith(bytes, kModule)) std::abort();
  }

  std::string path_;
  std::unique_ptr<ModuleFiles> files_;
  core::ModuleRecord record_;
  fs::path file_;
  std::string whole_;
};

Folder& TheFolder() {
  static Folder folder;
  return folder;
}

// Before the record: "BERTHMOD", version, length, digest.
constexpr size_t kLengthAt = 12;
constexpr size_t kDigestAt = 16;
constexpr size_t kHeadBytes = kDigestAt + Digest::kBytes;

// Returns the file with a correct digest of its record.
std::string Healed(std::string file) {
  uint32_t length = 0;
  if (file.size() < kHeadBytes) return file;
  memcpy(&length, file.data() + kLengthAt, sizeof(length));
  if (length > file.size() - kHeadBytes) return file;
  const Digest digest = Sha256Of(absl::string_view(file).substr(kHeadBytes, length));
  memcpy(file.data() + kDigestAt, digest.bits.data(), Digest::kBytes);
  return file;
}

}  // namespace

// The first byte: whether the digest is corrected.
std::vector<std::string> Seeds() {
  const std::string& whole = TheFolder().whole();
  return {std::string("\0", 1) + whole, "\1" + whole, "\1" + whole.substr(0, whole.size() - 1), "\1" + whole + "x"};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth;
  if (size == 0) return 0;
  const std::string file(reinterpret_cast<const char*>(data) + 1, size - 1);
  fuzz::TheFolder().Read(data[0] % 2 == 0 ? file : fuzz::Healed(file));
  return 0;
}
