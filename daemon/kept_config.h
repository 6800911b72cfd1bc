// KeptConfig reads the daemon's configuration, and keeps the file's text as it was when it was last read without a
// mistake: in custody, so that a broker that follows can go on by it. A mistake in a file costs nobody a lease.
//
//   KeptConfig config(options, custody, &held);
//   BERTH_ASSIGN_OR_RETURN(const Settings settings, config.ReadToStart());
//   if (!config.mistake().ok()) ...                       // the file's; settings are what was before that was made
//   absl::StatusOr<Settings> now = config.Read();         // to reload

#ifndef DAEMON_KEPT_CONFIG_H_
#define DAEMON_KEPT_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"
#include "daemon/core_config.h"
#include "daemon/options.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/custody.h"

namespace berth {

// Thread-compatible.
class KeptConfig {
 public:
  // Takes out of `held` what earlier brokers have kept. `custody` outlives this.
  KeptConfig(BrokerOptions options, Custody* custody, HeldFds* held);

  // What flags, environment and file say now; of the file that is kept. Errors: CombineSettings()'s, and what is kept
  // stays.
  absl::StatusOr<Settings> Read();
  // The same; where the file has a mistake, what an earlier broker has kept of it. Errors: as Read(), where there is no
  // such.
  absl::StatusOr<Settings> ReadToStart();

  // The mistake that ReadToStart() went past; OK for none.
  const absl::Status& mistake() const { return mistake_; }

 private:
  void TakeKept(HeldFds* held);
  // Keeps the text instead of what is kept. Where that cannot be done a broker that follows has what is kept.
  void Keep(const std::string& text);

  const BrokerOptions options_;
  Custody& custody_;
  // What is in custody, under which id: the greatest is the newest; 0 for nothing.
  uint64_t id_ = 0;
  UniqueFd file_;
  std::string text_;
  absl::Status mistake_;
};

}  // namespace berth

#endif  // DAEMON_KEPT_CONFIG_H_
