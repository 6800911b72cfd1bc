// GrpcFront: the gRPC server with all of Berth's services, health and reflection. It listens on nothing: connections
// come from the Acceptor.

#ifndef DAEMON_SERVICE_GRPC_FRONT_H_
#define DAEMON_SERVICE_GRPC_FRONT_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server.h"

namespace berth::service {

// The bounds on what clients can make gRPC hold.
struct GrpcLimits {
  // Calls open on one connection, twice what one process may have unsettled; the next waits in its client until one
  // ends. A client that does not heed the limit loses its connection.
  int streams_per_connection = 2048;
  // Of all connections and calls together; gRPC reads no more while it is used up. Ten thousand waiting calls take
  // 160 MiB.
  size_t memory_bytes = size_t{1} << 30;
  // For what gRPC serves one call a thread: reflection. A call past them is answered RESOURCE_EXHAUSTED.
  int threads = 32;
};

// Thread-safe. Whatever is under way is ended with it.
class GrpcFront {
 public:
  // Serves `services`, which the front then owns.
  static absl::StatusOr<std::unique_ptr<GrpcFront>> Start(
      std::vector<std::unique_ptr<grpc::Service>> services, const GrpcLimits& limits = {});
  GrpcFront(const GrpcFront&) = delete;
  GrpcFront& operator=(const GrpcFront&) = delete;
  ~GrpcFront();

  // What the health service says; at the start that it serves.
  void SetServing(bool serving);

  // Serves the connection behind a connected, non-blocking fd, and owns it.
  void AddConnection(int fd);

 private:
  GrpcFront(std::vector<std::unique_ptr<grpc::Service>> services, std::unique_ptr<grpc::Server> server)
      : services_(std::move(services)), server_(std::move(server)) {}

  // The server refers to the services, so it goes first.
  const std::vector<std::unique_ptr<grpc::Service>> services_;
  const std::unique_ptr<grpc::Server> server_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_GRPC_FRONT_H_
