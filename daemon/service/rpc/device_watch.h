// DeviceWatches: the open WatchDevices calls. Each call is sent the current devices, then again after each change. For
// a caller that does not read, the daemon stores only that there is a change; when the caller reads again, it is sent
// the devices of that moment. A caller that does not read for long is dropped, and may resume later with the token of
// the last answer it read.

#ifndef DAEMON_SERVICE_RPC_DEVICE_WATCH_H_
#define DAEMON_SERVICE_RPC_DEVICE_WATCH_H_

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
#include "common/mutex.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/device_monitor_client.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/tenant_quota.h"

namespace grpc {
class CallbackServerContext;
template <typename Response>
class ServerWriteReactor;
}  // namespace grpc

namespace berth::v1 {
class WatchDevicesResponse;
}  // namespace berth::v1

namespace berth::service {

// Thread-safe.
class DeviceWatches {
 public:
  // A caller that has not taken an answer for this long is dropped once there is another answer.
  static constexpr absl::Duration kSlow = absl::Seconds(10);
  // Limits of open calls; past them a call is refused with LIMIT.
  static constexpr size_t kMaxPerConnection = 8;
  static constexpr size_t kMaxPerUid = 64;
  // Limit of all operators together; they do not count for their users.
  static constexpr size_t kMaxOfOperators = 64;

  using Reactor = grpc::ServerWriteReactor<v1::WatchDevicesResponse>;

  // `broker` and `monitor_client` must outlive the watches. `life` identifies this broker run: tokens of another run
  // are invalid here.
  DeviceWatches(Broker* broker, const DeviceMonitorClient* monitor_client, uint64_t life)
      : broker_(*broker), monitor_client_(*monitor_client), life_(life) {}
  // Requires: every call has ended.
  ~DeviceWatches() = default;

  // Serves a call by `caller` (on an operator's connection if `of_operator`) that has seen the state of `resume_token`;
  // or refuses it. `outcome` reports which. The reactor owns itself.
  Reactor* Start(grpc::CallbackServerContext* context, const absl::StatusOr<core::Caller>& caller, bool of_operator,
                 const std::string& resume_token, absl::Status* outcome) ABSL_LOCKS_EXCLUDED(mu_);

  // Sets each tenant's limit of open calls, within its user's limit; open calls stay.
  void SetQuotas(const core::QuotaTable& quotas) ABSL_LOCKS_EXCLUDED(mu_);

  // Reports a change of the devices. Does not block.
  void Changed() ABSL_LOCKS_EXCLUDED(mu_);

  // Ends every call and refuses new calls, because the daemon stops.
  void ShutDown() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of calls whose end has not left the process.
  size_t open() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Watch;

  absl::Status Admit(const std::shared_ptr<Watch>& watch) ABSL_LOCKS_EXCLUDED(mu_);
  // Count a call, or refuse it.
  absl::Status AdmitOperatorsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AdmitClientsLocked(const Watch& watch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(const std::shared_ptr<Watch>& watch) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the token of the earliest state that a read from now on can see.
  std::string Token() const;

  Broker& broker_;
  const DeviceMonitorClient& monitor_client_;
  const uint64_t life_;
  // Number of changes so far.
  std::atomic<uint64_t> revision_ = 0;

  mutable Mutex mu_;
  std::set<std::shared_ptr<Watch>> watches_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, size_t> per_connection_ ABSL_GUARDED_BY(mu_);
  size_t of_operators_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint32_t, size_t> per_uid_ ABSL_GUARDED_BY(mu_);
  std::map<core::Account, size_t> per_tenant_ ABSL_GUARDED_BY(mu_);
  core::QuotaTable quotas_ ABSL_GUARDED_BY(mu_);
  bool shutting_down_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_DEVICE_WATCH_H_
