#include "daemon/config/last_good_config.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "daemon/base/named_fd.h"
#include "daemon/base/toml.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

using fd_store::KeyOf;
using fd_store::Kind;

// The payload of a marked error.
constexpr char kMistakeMark[] = "berth/configuration";

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

// Whether a key has a value, in the table or in one below it.
bool HasValues(const toml::table& table) {
  return std::any_of(table.begin(), table.end(), [](const auto& entry) {
    const toml::table* const inner = entry.second.as_table();
    return inner == nullptr || HasValues(*inner);
  });
}

// Whether the text, which has no mistake, has more than comments, blank lines and headers of tables.
bool HasSettings(const std::string& text) {
  const absl::StatusOr<toml::table> root = ParseToml(text, "");
  return root.ok() && HasValues(*root);
}

// Returns the fd that the memory log's path names.
std::optional<int> OutputOf(const Settings& settings) {
  return settings.log_file.has_value() ? FindNamedFd(*settings.log_file) : std::nullopt;
}

}  // namespace

absl::Status AsConfigurationMistake(absl::Status error) {
  if (!absl::IsResourceExhausted(error)) error.SetPayload(kMistakeMark, absl::Cord());
  return error;
}

bool IsConfigurationMistake(const absl::Status& error) { return error.GetPayload(kMistakeMark).has_value(); }

LastGoodConfig::LastGoodConfig(Options options, std::vector<DeviceRecord> devices, SupervisorFdStore* fd_store,
                               HeldFds* held)
    : options_(std::move(options)), devices_(std::move(devices)), fd_store_(*fd_store) {
  TakeStored(held);
  const auto begin = held->lower_bound(KeyOf(Kind::kInheritedOutput));
  const auto end = held->upper_bound(KeyOf(Kind::kInheritedOutput, UINT64_MAX));
  for (auto it = begin; it != end; ++it) outputs_[static_cast<int>(it->first.id)] = std::move(it->second);
  held->erase(begin, end);
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

std::optional<ConfigMark> LastGoodConfig::AwaitSettled(absl::Duration limit) const {
  ConfigMark before;
  absl::Duration seen_same;
  for (absl::Duration waited; waited < limit; waited += kSettle) {
    const ConfigMark now = MarkConfig(options_);
    seen_same = now == before ? seen_same + kSettle : absl::ZeroDuration();
    // The clock may have been set back since the file was written. A missing file has not changed since 1970.
    const absl::Duration same = std::max(seen_same, absl::Now() - now.written);
    if (same >= kSettle && (same >= kSettleOpen || !IsConfigBeingWritten(options_))) return now;
    before = now;
    absl::SleepFor(kSettle);
  }
  return std::nullopt;
}

absl::StatusOr<Settings> LastGoodConfig::Read(const std::optional<ConfigMark>& complete) {
  BERTH_ASSIGN_OR_RETURN(const ConfigText file, ReadConfigText(options_, complete));
  if (file.being_written && !complete.has_value() && absl::Now() - file.mark.written < kSettleOpen) {
    return AsBeingWritten(absl::InvalidArgumentError(absl::StrCat(
        options_.config, " is being written: a process that changed it less than ", absl::FormatDuration(kSettleOpen),
        " ago still has it open; reload it once that process has closed it")));
  }
  const std::string& text = file.text;
  BERTH_ASSIGN_OR_RETURN(Settings settings, CombineSettings(options_, text, options_.config));
  std::vector<std::string> absent;
  BERTH_RETURN_IF_ERROR(CheckDeviceCaps(settings, devices_, &absent));
  for (const std::string& absent_device : absent) spdlog::warn("{}", absent_device);
  BERTH_RETURN_IF_ERROR(CheckOutput(settings));
  if (!HasSettings(text) && HasSettings(text_)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.config, " has no settings, and had some before: it may be incomplete; a restart of the daemon accepts "
        "a file without settings"));
  }
  if (file.being_written) {
    spdlog::warn("{} is still open for writing; applying its content, which may be incomplete: close the file and "
                 "reload it after the next change", options_.config);
  }
  Store(text);
  return settings;
}

absl::Status LastGoodConfig::CheckOutput(const Settings& settings) const {
  const std::optional<int> fd = OutputOf(settings);
  if (!fd.has_value() || *fd == STDOUT_FILENO || *fd == STDERR_FILENO || outputs_.contains(*fd)) {
    return absl::OkStatus();
  }
  std::string way_out = "name /dev/stdout, /dev/stderr or a file";
  if (*fd > STDERR_FILENO) {
    way_out = absl::StrCat("the daemon takes an fd only at its start, if fd ", *fd, " is open for writing then, and "
                           "log.file names it; start it with ", *fd, ">>FILE, or name a file");
  }
  return absl::InvalidArgumentError(absl::StrCat(settings.origins.at("log.file").where, ": log.file: ",
                                                 *settings.log_file, " is not an output of the daemon: ", way_out));
}

int LastGoodConfig::TakeUpOutput(const Settings& settings) {
  const std::optional<int> named = OutputOf(settings);
  std::erase_if(outputs_, [&](const auto& output) {
    if (output.first == named) return false;
    fd_store_.Drop(KeyOf(Kind::kInheritedOutput, static_cast<uint64_t>(output.first)));
    return true;
  });
  return outputs_.empty() ? -1 : outputs_.begin()->second.get();
}

absl::StatusOr<Settings> LastGoodConfig::ReadToStart() {
  const std::string stored = text_;
  const bool stores = id_ != 0;
  const absl::Duration limit = stores ? kMaxSettle : kMaxSettleWithoutText;
  const std::optional<ConfigMark> complete = AwaitSettled(limit);
  absl::StatusOr<Settings> settings = absl::AbortedError("");
  if (complete.has_value()) settings = Read(complete);
  being_written_ = absl::IsAborted(settings.status());
  if (being_written_) {
    settings = absl::InvalidArgumentError(absl::StrCat(options_.config, " is still being written after ",
                                                       absl::FormatDuration(limit), ": it is not complete"));
  }
  if (!stores && !settings.ok()) return AsConfigurationMistake(settings.status());
  if (!stores) return settings;
  absl::StatusOr<Settings> earlier =
      CombineSettings(options_, stored, absl::StrCat(options_.config, " before the mistake in it"));
  if (!settings.ok()) {
    mistake_ = settings.status();
    return earlier;
  }
  if (stored != text_ && earlier.ok()) earlier_ = *std::move(earlier);
  return settings;
}

}  // namespace berth
