#include "common/wire/session_credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kMagic = 0x31656c7573706163;  // "capsule1"

struct Layout {
  uint64_t magic = kMagic;
  uint64_t session = 0;
  Secret secret;
  char folder[96] = {};
};
static_assert(std::is_trivially_copyable_v<Layout>);

struct CredentialsLayout {
  uint64_t session;
  uint64_t channel;
  Secret secret;
};
static_assert(sizeof(CredentialsLayout) == 32);

}  // namespace

absl::StatusOr<UniqueFd> WriteSessionCredentials(const SessionCredentials& session_credentials) {
  Layout layout;
  if (session_credentials.folder.size() >= sizeof(layout.folder)) {
    return absl::InvalidArgumentError(absl::StrCat("folder ", session_credentials.folder, " is longer than 95 bytes"));
  }
  layout.session = session_credentials.session.value();
  layout.secret = session_credentials.secret;
  memcpy(layout.folder, session_credentials.folder.data(), session_credentials.folder.size());
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("berth-session", 0));
  if (::write(fd.get(), &layout, sizeof(layout)) != sizeof(layout)) {
    return OsError("the daemon cannot write the session credentials", errno);
  }
  BERTH_RETURN_IF_ERROR(SealMemfd(fd.get(), F_SEAL_WRITE));
  // The daemon's user owns the file. Descendants of its client reopen it in the owner process's /proc folder, which the
  // kernel opens only to processes that may read the owner process's memory.
  if (::fchmod(fd.get(), 0444) < 0) return OsError("fchmod(session credentials)", errno);
  return fd;
}

absl::StatusOr<SessionCredentials> ReadSessionCredentials(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  Layout layout;
  if (seals < 0 || (seals & F_SEAL_WRITE) == 0 || ::pread(fd, &layout, sizeof(layout), 0) != sizeof(layout) ||
      layout.magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat("fd ", fd, " does not have Berth session credentials"));
  }
  return SessionCredentials{.session = SessionId(layout.session),
                            .secret = layout.secret,
                            .folder = std::string(layout.folder, strnlen(layout.folder, sizeof(layout.folder)))};
}

std::string EncodeCredentials(const Credentials& credentials) {
  const CredentialsLayout layout = {credentials.session.value(), credentials.channel.value(),
                                    credentials.secret};
  return std::string(reinterpret_cast<const char*>(&layout), sizeof(layout));
}

absl::StatusOr<Credentials> DecodeCredentials(absl::string_view bytes) {
  CredentialsLayout layout;
  if (bytes.size() != sizeof(layout)) {
    return absl::InvalidArgumentError(
        absl::StrCat("credentials of ", bytes.size(), " bytes, not ", sizeof(layout)));
  }
  memcpy(&layout, bytes.data(), sizeof(layout));
  return Credentials{SessionId(layout.session), ChannelId(layout.channel), layout.secret};
}

}  // namespace berth
