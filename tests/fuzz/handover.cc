// Data that a client inherits: a session's credentials, its environment value, pages, handles.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include <berth/block_handle.h>

#include "client/sdk/transport/environment.h"
#include "common/os/memfd.h"
#include "common/os/unique_fd.h"
#include "common/wire/fence_page.h"
#include "common/wire/session_credentials.h"
#include "common/wire/state_page.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

std::string ContentOf(int fd) {
  struct stat status = {};
  ::fstat(fd, &status);
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  if (::pread(fd, bytes.data(), bytes.size(), 0) < 0) std::abort();
  return bytes;
}

// Returns a memfd of these bytes, sealed as a real one is, or in another way.
UniqueFd FileOf(const std::string& bytes, uint8_t seals) {
  UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::pwrite(fd.get(), bytes.data(), bytes.size(), 0) < 0) std::abort();
  int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals % 4 != 3) sealed |= F_SEAL_SEAL;
  if (seals % 8 < 6) sealed |= F_SEAL_WRITE;
  ::fcntl(fd.get(), F_ADD_SEALS, sealed);
  return fd;
}

}  // namespace

std::vector<std::string> Seeds() {
  const UniqueFd session_credentials = *WriteSessionCredentials({.session = SessionId(7), .folder = "/run/berth"});
  const Credentials credentials = {.session = SessionId(7), .channel = ChannelId(9)};
  const BlockHandle handle = {.node = 1, .incarnation = 2, .device_uuid = "GPU-1", .block = BlockId(3)};
  return {std::string("\1\0", 2) + ContentOf(session_credentials.get()),
          std::string("\2\0", 2) + EncodeCredentials(credentials),
          std::string("\3\0", 2) + "5,6,4711",
          std::string("\4\0", 2) + FormatHandle(handle),
          std::string("\5\0", 2) + ContentOf(CreateStatePage()->get()),
          std::string("\6\0", 2) + ContentOf(CreateFencePage(ChannelId(9))->get())};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth;
  if (size < 2) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  switch (data[0] % 7) {
    case 1:
      ReadSessionCredentials(fuzz::FileOf(bytes, data[1]).get()).status().IgnoreError();
      break;
    case 2:
      DecodeCredentials(bytes).status().IgnoreError();
      break;
    case 3:
      internal::ParseSessionName(bytes).status().IgnoreError();
      break;
    case 4:
      ParseHandle(bytes).status().IgnoreError();
      break;
    case 5:
      StatePage::MapReadOnly(fuzz::FileOf(bytes, data[1]).get()).status().IgnoreError();
      break;
    case 6:
      FencePage::MapReadOnly(fuzz::FileOf(bytes, data[1]).get()).status().IgnoreError();
      break;
  }
  return 0;
}
