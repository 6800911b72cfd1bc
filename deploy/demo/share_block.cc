// Shares a file's bytes between two processes through a block of the daemon's.
//
//   share_block lease FILE           leases a block, reads the file into it, prints its handle; holds it
//   share_block check HANDLE BYTES   maps the block read-only and prints the SHA-256 of its first BYTES; holds it
//
// Each holds the block until its standard input ends.

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <berth/block.h>
#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "common/cuda/driver.h"
#include "common/os/unique_fd.h"

namespace {

// Device memory cannot be read into or hashed in place: the data passes through a buffer of this size.
constexpr size_t kStagingBytes = 8 << 20;

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  fprintf(stderr, "share_block: %s\n", std::string(value.status().message()).c_str());
  exit(1);
}

void OrDie(const absl::Status& status) {
  OrDie(status.ok() ? absl::StatusOr<int>(0) : absl::StatusOr<int>(status));
}

void HoldUntilInputEnds() {
  fflush(stdout);
  while (getchar() != EOF) {
  }
}

// Returns the driver, with a context of the block's device current in this thread.
berth::cuda::Driver& DriverFor(const berth::Block& block) {
  berth::cuda::Driver* const driver = OrDie(berth::cuda::Driver::Get());
  const int ordinal = OrDie(berth::cuda::FindDevice(*driver, block.handle().device_uuid));
  OrDie(driver->SetCurrentContext(OrDie(driver->RetainPrimaryContext(ordinal))));
  return *driver;
}

void ReadFileInto(int fd, const berth::Block& block, const berth::Mapping& mapping, size_t size) {
  const bool host = mapping.kind() == berth::BlockKind::kHost;
  std::vector<std::byte> staging(host ? 0 : kStagingBytes);
  for (size_t at = 0; at < size;) {
    std::byte* const to = static_cast<std::byte*>(mapping.data()) + at;
    const ssize_t got = host ? read(fd, to, size - at) : read(fd, staging.data(), staging.size());
    if (got <= 0) OrDie(absl::DataLossError("the file ended early"));
    if (!host) {
      OrDie(DriverFor(block).CopyToDevice(reinterpret_cast<uint64_t>(to),
                                          std::span(staging.data(), static_cast<size_t>(got))));
    }
    at += static_cast<size_t>(got);
  }
}

std::string Sha256(const berth::Block& block, const berth::Mapping& mapping, size_t size) {
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  EVP_DigestInit_ex(context, EVP_sha256(), nullptr);
  if (mapping.kind() == berth::BlockKind::kHost) {
    EVP_DigestUpdate(context, mapping.data(), size);
  } else {
    std::vector<std::byte> staging(kStagingBytes);
    berth::cuda::Driver& driver = DriverFor(block);
    for (size_t at = 0; at < size; at += staging.size()) {
      const std::span part(staging.data(), std::min(staging.size(), size - at));
      OrDie(driver.CopyToHost(part, reinterpret_cast<uint64_t>(mapping.data()) + at));
      EVP_DigestUpdate(context, part.data(), part.size());
    }
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_DigestFinal_ex(context, digest, &length);
  EVP_MD_CTX_free(context);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(digest), length));
}

int Lease(const char* path) {
  const berth::UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (!file || fstat(file.get(), &info) != 0 || info.st_size == 0) OrDie(absl::NotFoundError(path));
  const size_t size = static_cast<size_t>(info.st_size);

  const auto session = OrDie(berth::Session::Open({.label = "quickstart: owner"}));
  const berth::Block block =
      OrDie(berth::Block::Allocate(session, {.bytes = berth::Bytes(size), .label = "quickstart"}));
  const berth::Mapping mapping = OrDie(block.Map());
  ReadFileInto(file.get(), block, mapping, size);
  OrDie(block.GrantToTenant(getuid()));
  printf("%s\n", berth::FormatHandle(block.handle()).c_str());
  HoldUntilInputEnds();
  return 0;
}

int Check(const char* text, const char* bytes) {
  const berth::BlockHandle handle = OrDie(berth::ParseHandle(text));
  const size_t size = OrDie(berth::ParseBytes(bytes)).count();
  const auto session = OrDie(berth::Session::Open({.label = "quickstart: importer"}));
  const berth::Block block = OrDie(berth::Block::Import(session, handle, {.read_only = true}));
  const berth::Mapping mapping = OrDie(block.Map());
  if (size > mapping.size()) OrDie(absl::OutOfRangeError("the block is smaller"));
  printf("%s\n", Sha256(block, mapping, size).c_str());
  HoldUntilInputEnds();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "lease" && argc == 3) return Lease(argv[2]);
  if (verb == "check" && argc == 4) return Check(argv[2], argv[3]);
  fprintf(stderr, "usage: share_block lease FILE | check HANDLE BYTES\n");
  return 2;
}
