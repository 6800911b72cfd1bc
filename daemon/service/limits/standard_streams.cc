#include "daemon/service/limits/standard_streams.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "daemon/core/types/caller.h"
#include "daemon/service/transport/peer.h"
#include "grpcpp/server_context.h"

namespace berth::service {
namespace {

using grpc::experimental::InterceptionHookPoints;

constexpr absl::string_view kWatch = "/grpc.health.v1.Health/Watch";
constexpr absl::string_view kReflect = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

}  // namespace

// Holds the place of one stream until gRPC has finished with it.
class StandardStreams::Stream final : public grpc::experimental::Interceptor {
 public:
  Stream(StandardStreams* streams, Bound* bound, grpc::experimental::ServerRpcInfo* info)
      : streams_(*streams), bound_(*bound), info_(*info) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) Admit();
    methods->Proceed();
  }

 private:
  void Admit() {
    absl::StatusOr<UidQuota::Place> place = streams_.Take(bound_, info_.server_context()->peer());
    if (place.ok()) {
      place_ = *std::move(place);
      return;
    }
    streams_.log_.Warn(absl::StrCat(info_.method(), " refused: ", place.status().message()));
    info_.server_context()->TryCancel();
  }

  StandardStreams& streams_;
  Bound& bound_;
  grpc::experimental::ServerRpcInfo& info_;
  std::optional<UidQuota::Place> place_;
};

StandardStreams::StandardStreams(const ConnectionTable* connections)
    : connections_(*connections),
      watches_("health watches", kHealthWatches),
      reflections_("reflection streams", kReflections) {}

grpc::experimental::Interceptor* StandardStreams::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  const absl::string_view method = info->method();
  if (method == kWatch) return new Stream(this, &watches_, info);
  if (method == kReflect) return new Stream(this, &reflections_, info);
  return nullptr;
}

absl::StatusOr<UidQuota::Place> StandardStreams::Take(Bound& bound, const std::string& grpc_peer) {
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<const Peer> peer, connections_.Find(grpc_peer));
  if (peer->role == Peer::Role::kAdmin) return bound.operators.Take(0);
  return bound.users.Take(core::UserOf(peer->tenant));
}

}  // namespace berth::service
