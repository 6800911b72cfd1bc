// GrpcServer: the gRPC server with all of Berth's services, health and reflection. It does not listen: the Acceptor
// passes it connections.

#ifndef DAEMON_SERVICE_TRANSPORT_GRPC_SERVER_H_
#define DAEMON_SERVICE_TRANSPORT_GRPC_SERVER_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace berth::service {

class ConnectionTable;

// Limits for the resources that clients can make gRPC hold.
struct GrpcLimits {
  // Open calls on one connection, twice the calls that one process may have unsettled; the next call waits in its
  // client. A client that ignores the limit loses its connection.
  int streams_per_connection = 2048;
  // Memory of all connections and calls together, in bytes; gRPC stops reading while it is used up. Ten thousand
  // waiting calls take 160 MiB.
  size_t memory_bytes = size_t{1} << 30;
  // Threads for services that use one thread per call: reflection. A call past the limit gets RESOURCE_EXHAUSTED.
  int threads = 32;
};

// Thread-safe. The destructor ends all calls in flight.
class GrpcServer {
 public:
  // Serves `services`, which the server then owns. Limits gRPC's own streams (StandardStreams) on `connections`, which
  // must outlive the server; null for no limit.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(std::vector<std::unique_ptr<grpc::Service>> services,
                                                           const ConnectionTable* connections,
                                                           const GrpcLimits& limits = {});
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;
  ~GrpcServer();

  // Sets the health service's answer, which is initially "serving".
  void SetServing(bool serving);

  // Serves the connection behind a connected, non-blocking fd, and owns it.
  void AddConnection(int fd);

 private:
  GrpcServer(std::vector<std::unique_ptr<grpc::Service>> services, std::unique_ptr<grpc::Server> server);

  // The server refers to the services, so it is destroyed first.
  const std::vector<std::unique_ptr<grpc::Service>> services_;
  const std::unique_ptr<grpc::Server> server_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TRANSPORT_GRPC_SERVER_H_
