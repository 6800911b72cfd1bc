// DeviceWatches: the WatchDevices calls that are open. Each is sent the devices as they are, then again after a change.
// A caller that does not read keeps nothing here but the fact that there is something new: when it reads again it is
// sent what is then. One that does not read for long is dropped, and goes on later where it was, by the token of what
// it has read.

#ifndef DAEMON_SERVICE_DEVICE_WATCH_H_
#define DAEMON_SERVICE_DEVICE_WATCH_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "common/mutex.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/inventory_desk.h"
#include "daemon/core/caller.h"
#include "daemon/core/tenant_quota.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace berth::service {

// Thread-safe.
class DeviceWatches {
 public:
  // Who has not taken an answer for so long is dropped once there is another.
  static constexpr absl::Duration kSlow = absl::Seconds(10);
  // Past these a call is refused with LIMIT.
  static constexpr size_t kMaxPerConnection = 8;
  static constexpr size_t kMaxPerUid = 64;
  // Of all operators', which are none of their users'.
  static constexpr size_t kMaxOfOperators = 64;

  using Reactor = grpc::ServerWriteReactor<v1::WatchDevicesResponse>;

  // `broker` and `desk` must outlive the watches. `life` is one of the broker's: tokens of another say nothing here.
  DeviceWatches(Broker* broker, const InventoryDesk* desk, uint64_t life)
      : broker_(*broker), desk_(*desk), life_(life) {}
  // Requires: every call has ended.
  ~DeviceWatches() = default;

  // Serves a call by `caller`, on an operator's connection or not, who has seen what `resume_token` names; or refuses
  // it: `outcome` says which. The reactor owns itself.
  Reactor* Start(grpc::CallbackServerContext* context, const absl::StatusOr<core::Caller>& caller, bool of_operator,
                 const std::string& resume_token, absl::Status* outcome) ABSL_LOCKS_EXCLUDED(mu_);

  // What each tenant may have open from now on, within its user's limit; those that are open stay.
  void SetQuotas(const core::QuotaTable& quotas) ABSL_LOCKS_EXCLUDED(mu_);

  // Devices are not what they were. Does not wait.
  void Changed() ABSL_LOCKS_EXCLUDED(mu_);

  // The daemon stops: ends every call, and refuses those that come.
  void ShutDown() ABSL_LOCKS_EXCLUDED(mu_);
  // Calls whose end has not left the process.
  size_t open() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Watch;

  absl::Status Admit(const std::shared_ptr<Watch>& watch) ABSL_LOCKS_EXCLUDED(mu_);
  // Count one in, or refuse it.
  absl::Status AdmitOperatorsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AdmitClientsLocked(const Watch& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(const std::shared_ptr<Watch>& watch) ABSL_LOCKS_EXCLUDED(mu_);

  // Names the state that a look from now on will see, at least.
  std::string Token() const;

  Broker& broker_;
  const InventoryDesk& desk_;
  const uint64_t life_;
  // Changes so far.
  std::atomic<uint64_t> revision_ = 0;

  mutable Mutex mu_;
  std::set<std::shared_ptr<Watch>> watches_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> per_connection_ ABSL_GUARDED_BY(mu_);
  size_t of_operators_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint32_t, size_t> per_uid_ ABSL_GUARDED_BY(mu_);
  std::map<core::Tenant, size_t> per_tenant_ ABSL_GUARDED_BY(mu_);
  core::QuotaTable quotas_ ABSL_GUARDED_BY(mu_);
  bool shutting_down_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_DEVICE_WATCH_H_
