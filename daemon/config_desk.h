// ConfigDesk: shows how the broker is configured, and takes in what its file says anew.
//
// Pools' settings, tenants' quotas and the devices' budget change while the daemon runs; what else the file says is
// named, and waits for a new daemon. What an operator has set since (`berth permits set`, `berth budget set`) stays,
// but for a key that the file now says otherwise than when it was last read.

#ifndef DAEMON_CONFIG_DESK_H_
#define DAEMON_CONFIG_DESK_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "daemon/broker/broker.h"
#include "daemon/core/core.h"
#include "daemon/core_config.h"
#include "daemon/service/config_source.h"

namespace berth {

// Thread-safe. One reload at a time.
class ConfigDesk final : public service::ConfigSource {
 public:
  // Reads flags and file again, and what they come to.
  using Reader = std::function<absl::StatusOr<Settings>()>;
  using Maker = std::function<core::Config(const Settings&)>;
  // Tells those beside the core what tenants may have from now on.
  using QuotaSetter = std::function<void(const core::QuotaTable&)>;

  // `settings` is what the broker runs on, which outlives this.
  ConfigDesk(Broker* broker, Settings settings, Reader read, Maker make, QuotaSetter set_quotas)
      : broker_(*broker),
        read_(std::move(read)),
        make_(std::move(make)),
        set_quotas_(std::move(set_quotas)),
        settings_(std::move(settings)) {}

  std::vector<service::ConfigValue> Describe() override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<service::ConfigChange>> Reload() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Errors: the core's.
  absl::Status ChangePool(const core::PoolConfig& from, const core::PoolConfig& to);
  void ChangeDeviceBudget(const core::Config& to);
  void ChangeQuotas(const core::QuotaTable& to);

  Broker& broker_;
  const Reader read_;
  const Maker make_;
  const QuotaSetter set_quotas_;

  Mutex mu_;
  // What runs, as far as files, flags and the environment say.
  Settings settings_ ABSL_GUARDED_BY(mu_);
  // What the file says of keys that need a new daemon.
  std::map<std::string, std::string> pending_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth

#endif  // DAEMON_CONFIG_DESK_H_
