// StandardStreams: limits the open streams of gRPC's own services, health and reflection, per user. Any user who may
// connect may open them without a session. Each costs memory or, for reflection, one of few threads.

#ifndef DAEMON_SERVICE_LIMITS_STANDARD_STREAMS_H_
#define DAEMON_SERVICE_LIMITS_STANDARD_STREAMS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/service/limits/refusal_log.h"
#include "daemon/service/limits/uid_quota.h"
#include "daemon/service/transport/connection_table.h"
#include "grpcpp/support/server_interceptor.h"

namespace berth::service {

// Limits of one method.
struct StandardStreamLimits {
  // Streams of one user.
  uint32_t per_uid = 0;
  // Streams of all users together. Each user has a share.
  uint32_t total = 0;
  // Streams of all operators together.
  uint32_t operators = 0;
};

inline constexpr StandardStreamLimits kHealthWatches = {.per_uid = 64, .total = 1024, .operators = 64};
// The sum of `total` and `operators` is the number of threads for such calls (GrpcLimits).
inline constexpr StandardStreamLimits kReflections = {.per_uid = 12, .total = 24, .operators = 8};

// Owned by gRPC. Cancels a stream past a limit. Thread-safe.
class StandardStreams final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // `connections` must outlive gRPC's server.
  explicit StandardStreams(const ConnectionTable* connections);

  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  class Stream;
  // The streams of one method.
  struct Bound {
    Bound(const char* what, const StandardStreamLimits& limits)
        : users(what, limits.per_uid, limits.total), operators(what, limits.operators) {}

    UidQuota users;
    UidQuota operators;
  };

  // Errors: LIMIT; kUnavailable if the connection has ended.
  absl::StatusOr<UidQuota::Place> Take(Bound& bound, const std::string& grpc_peer);

  const ConnectionTable& connections_;
  Bound watches_;
  Bound reflections_;
  RefusalLog log_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_LIMITS_STANDARD_STREAMS_H_
