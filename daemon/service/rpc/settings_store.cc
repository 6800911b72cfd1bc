#include "daemon/service/rpc/settings_store.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "berth/state/operator_settings.pb.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/os/file_io.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "daemon/broker/needed_thread.h"
#include "daemon/core/core.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/permit_conversion.h"
#include "google/protobuf/util/json_util.h"
#include "spdlog/spdlog.h"

namespace berth::service {
namespace {

std::string TextOf(const state::OperatorSettings& settings) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = true;
  std::string text;
  // Cannot fail for a message of known fields.
  (void)google::protobuf::util::MessageToJsonString(settings, &text, options);
  return text;
}

// Far more than the settings of every device, pool and user take.
constexpr size_t kMaxFileMib = 64;

absl::Status Unusable(absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(why, " Correct the file, or remove it to discard the operators' settings"));
}

absl::StatusOr<state::OperatorSettings> Parse(const std::string& path, const std::string& text) {
  state::OperatorSettings settings;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text, &settings);
  if (parsed.ok()) return settings;
  // The lines after the first show the position.
  const std::string mistake(parsed.message());
  return Unusable(absl::StrCat(path, ": ", mistake.substr(0, mistake.find('\n'))));
}

std::string Describe(const v1::Tenant& tenant) {
  return tenant.container().empty() ? absl::StrCat("uid ", tenant.uid())
                                    : absl::StrCat("uid ", tenant.uid(), " in ", tenant.container());
}

}  // namespace

state::OperatorSettings ToProto(const core::OperatorSettings& settings) {
  state::OperatorSettings out;
  for (const auto& [name, change] : settings.pools) {
    v1::SetPoolRequest* const to = out.add_pools();
    to->set_pool(name);
    ToProto(change, to);
  }
  for (const core::OperatorSettings::Device& device : settings.devices) {
    state::DeviceSetting* const to = out.add_devices();
    to->set_uuid(device.uuid);
    to->set_drain_reason(device.drain_reason);
    if (device.budget.has_value()) to->set_budget_bytes(device.budget->count());
  }
  for (const core::OperatorSettings::TenantBudget& budget : settings.tenant_budgets) {
    state::TenantBudget* const to = out.add_tenant_budgets();
    to->set_uuid(budget.uuid);
    ToProto(core::TenantNamedAs(budget.account), to->mutable_tenant());
    to->set_limit_bytes(budget.limit.count());
  }
  return out;
}

SettingsStore::SettingsStore(std::string folder, Broker* broker)
    : path_(absl::StrCat(folder, "/", kFileName)),
      broker_(*broker),
      absent_(std::make_unique<state::OperatorSettings>()),
      watch_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      wanted_(TextOf({})) {
  writer_ = NeededThread("operators' settings", [this] { Write(); });
}

SettingsStore::~SettingsStore() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    more_.SignalAll();
  }
  writer_.join();
}

absl::Status SettingsStore::Load(bool begun_anew) {
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  // Without the folder, nothing was stored.
  if (!file && (errno == ENOENT || errno == ENOTDIR)) return absl::OkStatus();
  unreadable_ = true;
  if (!file) return OsError(absl::StrCat("open ", path_), errno);
  struct stat info;
  if (::fstat(file.get(), &info) < 0) return OsError(path_, errno);
  if (!S_ISREG(info.st_mode)) return Unusable(absl::StrCat(path_, " is not a regular file."));
  BERTH_ASSIGN_OR_RETURN(std::string text, ReadToEnd(file.get(), path_, (kMaxFileMib << 20) + 1));
  if (text.size() > kMaxFileMib << 20) {
    return Unusable(absl::StrCat(path_, " has more than ", kMaxFileMib, " MiB, the limit."));
  }
  BERTH_ASSIGN_OR_RETURN(const state::OperatorSettings settings, Parse(path_, text));
  unreadable_ = false;
  {
    MutexLock lock(&mu_);
    wanted_ = std::move(text);
  }
  exists_ = true;
  Look();
  if (begun_anew) Make(settings);
  Make(settings.absent());
  return absl::OkStatus();
}

void SettingsStore::Make(const state::OperatorSettings& settings) {
  std::map<std::string, uint32_t> ordinals;
  for (const core::DeviceView& device :
       broker_.Read([](const core::Core& core) -> std::vector<core::DeviceView> { return core.ListDevices(); })) {
    ordinals.emplace(device.uuid, device.ordinal);
  }
  const auto device_of = [&](const std::string& uuid) -> absl::StatusOr<uint32_t> {
    if (const auto found = ordinals.find(uuid); found != ordinals.end()) return found->second;
    return absl::NotFoundError(absl::StrCat("no device ", uuid));
  };
  const auto made = [&](const std::string& what, auto make) {
    absl::Status status;
    broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) { status = make(core, now, effects); });
    if (!status.ok()) {
      spdlog::warn("{}: cannot apply an operator's {}: {}", path_, what, std::string(status.message()));
    }
    return status.ok();
  };
  for (const v1::SetPoolRequest& pool : settings.pools()) {
    const bool ok = made(absl::StrCat("change of pool ", pool.pool()), [&](auto& core, absl::Time now, auto* effects) {
      BERTH_ASSIGN_OR_RETURN(core::PoolChange change, FromProto(pool));
      change.stored = true;
      return core.SetPool(now, PoolName(pool.pool()), change, effects).status();
    });
    if (!ok) *absent_->add_pools() = pool;
  }
  for (const state::DeviceSetting& device : settings.devices()) {
    state::DeviceSetting left;
    if (!device.drain_reason().empty() &&
        !made(absl::StrCat("drain of device ", device.uuid()), [&](auto& core, absl::Time now, auto* effects) {
          BERTH_ASSIGN_OR_RETURN(const uint32_t ordinal, device_of(device.uuid()));
          return core.DrainDevice(now, ordinal, device.drain_reason(), effects).status();
        })) {
      left.set_drain_reason(device.drain_reason());
    }
    if (device.has_budget_bytes() &&
        !made(absl::StrCat("budget of device ", device.uuid()), [&](auto& core, absl::Time now, auto* effects) {
          BERTH_ASSIGN_OR_RETURN(const uint32_t ordinal, device_of(device.uuid()));
          return core.RestoreBudget(now, {.device = ordinal, .limit = Bytes(device.budget_bytes())}, effects);
        })) {
      left.set_budget_bytes(device.budget_bytes());
    }
    if (left.ByteSizeLong() == 0) continue;
    left.set_uuid(device.uuid());
    *absent_->add_devices() = left;
  }
  for (const state::TenantBudget& budget : settings.tenant_budgets()) {
    const bool ok = made(
        absl::StrCat("budget of ", Describe(budget.tenant()), " on device ", budget.uuid()),
        [&](auto& core, absl::Time now, auto* effects) {
          BERTH_ASSIGN_OR_RETURN(const uint32_t ordinal, device_of(budget.uuid()));
          const core::Account account = {.uid = budget.tenant().uid(), .container = budget.tenant().container()};
          return core.RestoreBudget(
              now, {.device = ordinal, .of = account, .limit = Bytes(budget.limit_bytes())}, effects);
        });
    if (!ok) *absent_->add_tenant_budgets() = budget;
  }
}

void SettingsStore::Save(absl::Duration patience) {
  // The next broker that can read the ledger continues with the ledger's settings.
  if (!broker_.CheckLedger().ok()) return;
  MutexLock in_order(&reading_);
  state::OperatorSettings settings = ToProto(
      broker_.Read([](const core::Core& core) -> core::OperatorSettings { return core.ListOperatorSettings(); }));
  if (absent_->ByteSizeLong() > 0) *settings.mutable_absent() = *absent_;
  std::string text = TextOf(settings);
  const absl::Time deadline = SteadyNow() + patience;
  MutexLock lock(&mu_);
  if (text == wanted_ && last_written_ == last_wanted_) return;
  wanted_ = std::move(text);
  const uint64_t number = ++last_wanted_;
  more_.SignalAll();
  while (last_tried_ < number) {
    if (written_.WaitWithDeadline(&mu_, deadline)) return;
  }
}

void SettingsStore::Look() {
  char events[1024];
  while (watch_ && ::read(watch_.get(), events, sizeof(events)) > 0) {
  }
  MutexLock lock(&mu_);
  look_ = true;
  more_.SignalAll();
}

bool SettingsStore::HasChanged(absl::string_view text) {
  if (!exists_.load()) return false;
  // The watch comes first: it reports each later change. A watch of this file by its inode ends with the file.
  constexpr uint32_t kEvents = IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_DONT_FOLLOW;
  if (watch_) ::inotify_add_watch(watch_.get(), path_.c_str(), kEvents);
  const UniqueFd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const absl::StatusOr<std::string> there =
      file ? ReadToEnd(file.get(), path_, text.size() + 1) : OsError(path_, errno);
  if (there.ok() && *there == text) return false;
  spdlog::warn("{} was deleted or changed while the daemon serves; writing the operators' settings again", path_);
  return true;
}

std::string SettingsStore::fault() const {
  MutexLock lock(&mu_);
  if (last_written_ == last_wanted_) return "";
  return attempt_.ok() ? absl::StrCat(path_, ": the disk is slow") : std::string(attempt_.message());
}

void SettingsStore::Write() {
  while (true) {
    std::string text;
    uint64_t number = 0;
    bool due = false;
    {
      MutexLock lock(&mu_);
      for (bool late = false; last_tried_ == last_wanted_ && !look_ && !stop_ && !late;) {
        // A failed write is retried later.
        const absl::Time again = last_written_ == last_wanted_ ? absl::InfiniteFuture() : SteadyNow() + kRetryAfter;
        late = more_.WaitWithDeadline(&mu_, again);
      }
      if (stop_) return;
      text = wanted_;
      number = last_wanted_;
      look_ = false;
      due = last_written_ != last_wanted_;
    }
    if (!due && !HasChanged(text)) continue;
    const absl::Status written = WriteFile(text);
    if (written.ok()) {
      exists_ = true;
      // Watches the new file.
      Look();
    }
    MutexLock lock(&mu_);
    const bool news = written.ok() != attempt_.ok();
    attempt_ = written;
    last_tried_ = number;
    if (written.ok()) last_written_ = number;
    written_.SignalAll();
    if (!news) continue;
    if (written.ok()) {
      spdlog::info("saved the operators' settings to {} again", path_);
    } else {
      spdlog::error("cannot save the operators' settings: {}; a reboot loses them; free space on the disk or make it "
                    "writable; retrying every {}",
                    std::string(written.message()), absl::FormatDuration(kRetryAfter));
    }
  }
}

absl::Status SettingsStore::WriteFile(absl::string_view text) {
  const std::string folder = path_.substr(0, path_.rfind('/'));
  // The folder may have been removed while the daemon ran.
  if (::mkdir(folder.c_str(), 0700) < 0 && errno != EEXIST) return OsError(absl::StrCat("mkdir ", folder), errno);
  const std::string beside = absl::StrCat(path_, ".new");
  if (::unlink(beside.c_str()) < 0 && errno != ENOENT) return OsError(absl::StrCat("unlink ", beside), errno);
  const UniqueFd file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return OsError(absl::StrCat("open ", beside), errno);
  BERTH_RETURN_IF_ERROR(WriteAll(file.get(), text, beside));
  if (::fsync(file.get()) < 0) return OsError(absl::StrCat("fsync ", beside), errno);
  const std::string unreadable = absl::StrCat(path_, ".unreadable");
  if (unreadable_.load() && ::rename(path_.c_str(), unreadable.c_str()) < 0 && errno != ENOENT) {
    return OsError(absl::StrCat("rename ", path_), errno);
  }
  unreadable_ = false;
  if (::rename(beside.c_str(), path_.c_str()) < 0) return OsError(absl::StrCat("rename ", beside), errno);
  const UniqueFd at(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!at || ::fsync(at.get()) < 0) return OsError(absl::StrCat("fsync ", folder), errno);
  return absl::OkStatus();
}

}  // namespace berth::service
