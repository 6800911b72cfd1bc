// grpc::Service, for the sources outside this folder that own services.

#ifndef DAEMON_SERVICE_TRANSPORT_GRPC_SERVICE_H_
#define DAEMON_SERVICE_TRANSPORT_GRPC_SERVICE_H_

#include "grpcpp/impl/service_type.h"  // IWYU pragma: export

#endif  // DAEMON_SERVICE_TRANSPORT_GRPC_SERVICE_H_
