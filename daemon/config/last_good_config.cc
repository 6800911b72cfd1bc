#include "daemon/config/last_good_config.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

using fd_store::KeyOf;
using fd_store::Kind;

absl::StatusOr<std::string> TextOf(int file) {
  struct stat status;
  if (::fstat(file, &status) < 0) return OsError("fstat(configuration)", errno);
  std::string text(static_cast<size_t>(status.st_size), '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  if (size < 0) return OsError("pread(configuration)", errno);
  text.resize(static_cast<size_t>(size));
  return text;
}

absl::StatusOr<UniqueFd> FileOf(const std::string& text) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd file, CreateMemfd("berth-configuration", text.size()));
  if (::pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return OsError("pwrite(configuration)", errno);
  }
  BERTH_RETURN_IF_ERROR(SealMemfd(file.get(), F_SEAL_WRITE));
  return file;
}

}  // namespace

LastGoodConfig::LastGoodConfig(Options options, SupervisorFdStore* fd_store, HeldFds* held)
    : options_(std::move(options)), fd_store_(*fd_store) {
  TakeStored(held);
}

void LastGoodConfig::TakeStored(HeldFds* held) {
  const auto begin = held->lower_bound(KeyOf(Kind::kConfiguration));
  const auto end = held->upper_bound(KeyOf(Kind::kConfiguration, UINT64_MAX));
  for (auto it = begin; it != end; ++it) {
    // A text that a broker could not drop before it died.
    if (id_ != 0) fd_store_.Drop(KeyOf(Kind::kConfiguration, id_));
    id_ = it->first.id;
    file_ = std::move(it->second);
  }
  held->erase(begin, end);
  if (id_ == 0) return;
  absl::StatusOr<std::string> text = TextOf(file_.get());
  if (text.ok()) text_ = *std::move(text);
}

void LastGoodConfig::Store(const std::string& text) {
  if (options_.config.empty() || (id_ != 0 && text == text_)) return;
  const absl::Status stored = [&]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(UniqueFd file, FileOf(text));
    BERTH_RETURN_IF_ERROR(fd_store_.Put(KeyOf(Kind::kConfiguration, id_ + 1), file.get(), FdOwner::kDaemon));
    if (id_ != 0) fd_store_.Drop(KeyOf(Kind::kConfiguration, id_));
    ++id_;
    file_ = std::move(file);
    text_ = text;
    return absl::OkStatus();
  }();
  if (!stored.ok())
    spdlog::error("cannot persist the configuration for later brokers: {}", std::string(stored.message()));
}

absl::StatusOr<Settings> LastGoodConfig::Read() {
  BERTH_ASSIGN_OR_RETURN(const std::string text, ReadConfigText(options_));
  BERTH_ASSIGN_OR_RETURN(Settings settings, CombineSettings(options_, text, options_.config));
  Store(text);
  return settings;
}

absl::StatusOr<Settings> LastGoodConfig::ReadToStart() {
  absl::StatusOr<Settings> settings = Read();
  if (settings.ok() || id_ == 0) return settings;
  mistake_ = settings.status();
  return CombineSettings(options_, text_, absl::StrCat(options_.config, " before the mistake in it"));
}

}  // namespace berth
