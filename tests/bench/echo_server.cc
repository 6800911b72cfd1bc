// A bare gRPC echo behind the daemon's own accept loop: the cost of the transport alone.
//
//   echo_server SOCKET [--single-poller]
//
// Writes "ready" to fd 3 once it serves; ends on SIGTERM, or with the process that started it. With the flag one thread
// serves all calls, as in the daemon; without it gRPC serves them in its default way.

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/service/transport/acceptor.h"
#include "daemon/service/transport/connection_table.h"
#include "daemon/service/transport/grpc_server.h"
#include "daemon/service/transport/single_poller.h"
#include "tests/bench/child_process.h"
#include "tests/bench/echo.grpc.pb.h"

namespace berth::bench {
namespace {

// Finishes when its call is cancelled.
class WaitReactor final : public grpc::ServerUnaryReactor {
  void OnCancel() override { Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }
};

class EchoServiceImpl final : public EchoService::CallbackService {
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context, const EchoRequest* request,
                                 EchoResponse* response) override {
    response->set_payload(request->payload());
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Wait(grpc::CallbackServerContext*, const EchoRequest*, EchoResponse*) override {
    return new WaitReactor;
  }
};

absl::StatusOr<UniqueFd> ListenOn(const std::string& path) {
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener) return OsError("socket", errno);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path))
    return absl::InvalidArgumentError("the socket's path is too long");
  memcpy(address.sun_path, path.data(), path.size());
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return OsError("bind", errno);
  }
  if (::listen(listener.get(), 4096) != 0) return OsError("listen", errno);
  return listener;
}

absl::StatusOr<UniqueFd> WatchTermination() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  // Blocked before any thread starts, so that all threads inherit the mask.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return OsError("signalfd", errno);
  return fd;
}

// As the daemon does: half of the numbers are for gRPC's duplicates.
void RaiseFdLimit() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

absl::Status Serve(const std::string& path, bool single_poller) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  RaiseFdLimit();
  BERTH_ASSIGN_OR_RETURN(const UniqueFd termination, WatchTermination());
  BERTH_ASSIGN_OR_RETURN(UniqueFd listener, ListenOn(path));
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<EventLoop> loop, EventLoop::Create());
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<EchoServiceImpl>());
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<service::GrpcServer> server,
                         service::GrpcServer::Start(std::move(services), nullptr));
  std::optional<service::SinglePoller> poller;
  if (single_poller) poller.emplace();
  service::ConnectionTable connections{service::ConnectionLimits()};
  service::AcceptGate gate{service::AcceptRates()};
  service::Acceptor acceptor(loop.get(), &gate, &connections, [&server](int fd) { server->AddConnection(fd); });
  BERTH_RETURN_IF_ERROR(acceptor.Listen(std::move(listener), service::Peer::Role::kTenant));
  BERTH_RETURN_IF_ERROR(
      loop->Watch(termination.get(), EPOLLIN, [&loop](uint32_t) { loop->Stop(); }).status());
  if (::write(kChildPipeFd, "ready\n", 6) != 6) return OsError("write", errno);
  loop->Run();
  return absl::OkStatus();
}

}  // namespace
}  // namespace berth::bench

int main(int argc, char** argv) {
  const bool single_poller = argc == 3 && absl::string_view(argv[2]) == "--single-poller";
  if (argc != (single_poller ? 3 : 2)) {
    std::cerr << "usage: echo_server SOCKET [--single-poller]\n";
    return 2;
  }
  // As in the daemon's broker, so that the reference is as fast as the broker.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  if (const absl::Status status = berth::bench::Serve(argv[1], single_poller); !status.ok()) {
    std::cerr << "echo_server: " << status << "\n";
    return 1;
  }
  return 0;
}
