#include "daemon/kept_config.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/memfd.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

using custody::KeyOf;
using custody::Kind;

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

KeptConfig::KeptConfig(BrokerOptions options, Custody* custody, HeldFds* held)
    : options_(std::move(options)), custody_(*custody) {
  TakeKept(held);
}

void KeptConfig::TakeKept(HeldFds* held) {
  const auto begin = held->lower_bound(KeyOf(Kind::kConfiguration));
  const auto end = held->upper_bound(KeyOf(Kind::kConfiguration, UINT64_MAX));
  for (auto it = begin; it != end; ++it) {
    // One that a broker died before it could let go of.
    if (id_ != 0) custody_.Drop(KeyOf(Kind::kConfiguration, id_));
    id_ = it->first.id;
    file_ = std::move(it->second);
  }
  held->erase(begin, end);
  if (id_ == 0) return;
  absl::StatusOr<std::string> text = TextOf(file_.get());
  if (text.ok()) text_ = *std::move(text);
}

void KeptConfig::Keep(const std::string& text) {
  if (options_.config.empty() || (id_ != 0 && text == text_)) return;
  const absl::Status kept = [&]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(UniqueFd file, FileOf(text));
    BERTH_RETURN_IF_ERROR(custody_.Put(KeyOf(Kind::kConfiguration, id_ + 1), file.get(), FdOwner::kDaemon));
    if (id_ != 0) custody_.Drop(KeyOf(Kind::kConfiguration, id_));
    ++id_;
    file_ = std::move(file);
    text_ = text;
    return absl::OkStatus();
  }();
  if (!kept.ok()) spdlog::error("the configuration is not kept for brokers to come: {}", std::string(kept.message()));
}

absl::StatusOr<Settings> KeptConfig::Read() {
  BERTH_ASSIGN_OR_RETURN(const std::string text, ReadConfigText(options_));
  BERTH_ASSIGN_OR_RETURN(Settings settings, CombineSettings(options_, text, options_.config));
  Keep(text);
  return settings;
}

absl::StatusOr<Settings> KeptConfig::ReadToStart() {
  absl::StatusOr<Settings> settings = Read();
  if (settings.ok() || id_ == 0) return settings;
  mistake_ = settings.status();
  return CombineSettings(options_, text_, absl::StrCat(options_.config, " before the mistake in it"));
}

}  // namespace berth
