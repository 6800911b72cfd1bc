// Stubs: the client ends of the daemon's services, on a gRPC channel that belongs to one session alone.

#ifndef CLIENT_SDK_TRANSPORT_STUBS_H_
#define CLIENT_SDK_TRANSPORT_STUBS_H_

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace berth::internal {

// Thread-safe.
class Stubs {
 public:
  // `socket` is the path of gRPC's socket. An attempt to connect takes at most `accept_patience`.
  Stubs(const std::string& socket, absl::Duration accept_patience);
  Stubs(const Stubs&) = delete;
  Stubs& operator=(const Stubs&) = delete;
  ~Stubs();

  // Returns the stub of a service, such as v1::PermitService. The caller includes the service's .grpc.pb.h, which takes
  // a second to compile.
  template <typename Service>
  typename Service::Stub& Of() const;

  // Whether gRPC is establishing a connection. A caller that destroys the stubs in this state leaks the attempt: gRPC
  // 1.51 continues the attempt until it completes, possibly forever.
  bool connecting() const;
  // Whether gRPC has a connection.
  bool connected() const;
  // Waits until gRPC is no longer establishing a connection. Returns false if that takes longer than `until`.
  bool AwaitConnecting(absl::Time until) const;
  // Before a call: finds the socket again whose folder was deleted and created again.
  void FindSocket() const;
  // Makes gRPC connect at once where it pauses between two attempts to connect.
  void ConnectNow() const;

 private:
  // A stub of a service outside this class would need the channel before the session has started gRPC.
  struct Channel;
  const std::unique_ptr<const Channel> channel_;
};

// Sets the deadline of an attempt, a time of SteadyNow().
void SetDeadline(absl::Time deadline, grpc::ClientContext* context);

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_STUBS_H_
