// ConfigManager: shows the broker's configuration and applies changes of the configuration file.
//
// Pools' settings, tenants' quotas and the devices' budget change while the daemon runs. Any other change in the file
// is listed and takes effect with a new daemon. An operator's value (`berth permits set`, `berth budget set`) stays,
// unless its key has changed in the file since the last read.

#ifndef DAEMON_CONFIG_CONFIG_MANAGER_H_
#define DAEMON_CONFIG_CONFIG_MANAGER_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "daemon/broker/broker.h"
#include "daemon/config/settings.h"
#include "daemon/core/core.h"
#include "daemon/service/rpc/config_source.h"

namespace berth {

// Thread-safe. One reload runs at a time.
class ConfigManager final : public service::ConfigSource {
 public:
  // Rereads flags and file, and returns the resulting settings. Errors: kAborted if the file has another mark than the
  // given one.
  using Reader = std::function<absl::StatusOr<Settings>(const std::optional<ConfigMark>& complete)>;
  using Maker = std::function<core::Config(const Settings&)>;
  // Passes changed tenant quotas to the components outside the core.
  using QuotaSetter = std::function<void(const core::QuotaTable&)>;
  using LogReopener = std::function<absl::Status()>;

  // `settings` is the broker's current configuration. `broker` outlives this.
  ConfigManager(Broker* broker, Settings settings, Reader read, Maker make, QuotaSetter set_quotas,
                LogReopener reopen_logs)
      : broker_(*broker),
        read_(std::move(read)),
        make_(std::move(make)),
        set_quotas_(std::move(set_quotas)),
        reopen_logs_(std::move(reopen_logs)),
        settings_(std::move(settings)) {}

  std::vector<service::ConfigValue> Describe() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<service::ConfigChange>> Reload() override { return ReloadMarked(std::nullopt); }
  // As Reload(), of the file with this mark. Errors: also kAborted, with nothing changed, if it has another one.
  absl::StatusOr<std::vector<service::ConfigChange>> ReloadMarked(const std::optional<ConfigMark>& complete)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ReopenLogs() override;
  // Returns the values that differ from those of an earlier broker's settings.
  std::vector<service::ConfigChange> ChangesSince(const Settings& earlier) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Errors: the core's.
  absl::Status ChangePool(const core::PoolConfig& from, const core::PoolConfig& to);
  void ChangeDeviceBudget(const core::Config& to);
  void ChangeQuotas(const core::QuotaTable& to);

  Broker& broker_;
  const Reader read_;
  const Maker make_;
  const QuotaSetter set_quotas_;
  const LogReopener reopen_logs_;

  Mutex mu_;
  // The configuration in effect, according to files, flags and the environment.
  Settings settings_ ABSL_GUARDED_BY(mu_);
  // Values in the file that need a new daemon, by key.
  std::map<std::string, std::string> pending_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_CONFIG_CONFIG_MANAGER_H_
