// One client process of a benchmark.
//
//   bench_client echo SOCKET     one bare echo
//   bench_client permit FOLDER   opens a session, acquires a permit, releases it
//   bench_client hold FOLDER     acquires a permit, reports it on fd 3, holds it until killed
//   bench_client cycle FOLDER    acquires and releases until killed, reporting both on fd 3
//   bench_client turn FOLDER     acquires when it reads a byte, reports that on fd 3, and releases at the next byte
//   bench_client contend FILE KIND WHERE   contends for a lock (peer_locks.h) until killed, once FILE exists
//   bench_client echo-exec SOCKET          one bare echo, then execs /bin/true
//   bench_client hoard FOLDER S B written|bare P W
//                              opens S sessions with B blocks and P permits each, reports that on fd 3; then runs
//                              the commands in the bytes it reads (crowd.h), reports each; W requests wait in each
//
// Exits with 0 if everything succeeded.

#include <errno.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/measurements/hoard.h"
#include "tests/bench/peers/peer_locks.h"
#include "tests/bench/stopwatch.h"
#include "tests/bench/witness.h"

namespace berth::bench {
namespace {

absl::Status Report(Fact::Kind kind) {
  const Fact fact = {.kind = kind, .pid = ::getpid(), .nanoseconds = MonotonicNanoseconds()};
  if (::write(kChildPipeFd, &fact, sizeof(fact)) != sizeof(fact)) return OsError("write", errno);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Session>> OpenSession(const std::string& folder) {
  return Session::Open({.folder = folder, .label = "bench", .timeout = absl::Minutes(2)});
}

absl::Status AcquireAndRelease(const std::string& folder) {
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, OpenSession(folder));
  BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session));
  return permit.Release();
}

absl::Status Hold(const std::string& folder) {
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, OpenSession(folder));
  BERTH_ASSIGN_OR_RETURN(const Permit permit, Permit::Acquire(session));
  BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kHolds));
  while (true) ::pause();
}

absl::Status Cycle(const std::string& folder) {
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, OpenSession(folder));
  while (true) {
    BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session));
    BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kHolds));
    BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kReleases));
    BERTH_RETURN_IF_ERROR(permit.Release());
  }
}

absl::Status Turn(const std::string& folder) {
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, OpenSession(folder));
  BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kReady));
  std::optional<Permit> permit;
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) == 1) {
    if (permit.has_value()) {
      BERTH_RETURN_IF_ERROR(permit->Release());
      permit.reset();
      BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kReleases));
    } else {
      BERTH_ASSIGN_OR_RETURN(permit, Permit::Acquire(session));
      BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kHolds));
    }
  }
  return absl::OkStatus();
}

absl::Status Contend(const std::string& start, const std::string& kind, const std::string& where) {
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<PeerLock> lock, ConnectLock(kind, where));
  BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kReady));
  while (::access(start.c_str(), F_OK) != 0) absl::SleepFor(absl::Milliseconds(20));
  while (true) {
    BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kAsks));
    BERTH_RETURN_IF_ERROR(lock->Acquire());
    BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kHolds));
    BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kReleases));
    BERTH_RETURN_IF_ERROR(lock->Release());
    // Does other work, as a real client does after a release: its next request queues behind the waiters.
    absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::Status EchoThenExec(const std::string& socket) {
  BERTH_RETURN_IF_ERROR(EchoClient(socket).Call());
  char name[] = "/bin/true";
  char* argv[] = {name, nullptr};
  ::execv(name, argv);
  return OsError("execv", errno);
}

absl::Status FollowCommands(const std::string& folder, int sessions, const HoardShare& share) {
  Hoard hoard;
  for (int i = 0; i < sessions; ++i) BERTH_RETURN_IF_ERROR(hoard.Add(folder, share));
  BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kDone));
  char command;
  while (::read(STDIN_FILENO, &command, 1) == 1) {
    if (command == 'w') hoard.BeginToWait(share);
    if (command == 'c') BERTH_RETURN_IF_ERROR(hoard.CheckBytes());
    if (command == 'p') BERTH_RETURN_IF_ERROR(hoard.PassPermitsOn());
    if (command == 'r') BERTH_RETURN_IF_ERROR(hoard.Return());
    BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kDone));
  }
  return absl::OkStatus();
}

absl::Status HoldHoard(const std::string& folder, int sessions, const HoardShare& share) {
  const absl::Status status = FollowCommands(folder, sessions, share);
  if (!status.ok()) BERTH_RETURN_IF_ERROR(Report(Fact::Kind::kFailed));
  return status;
}

absl::Status Run(const std::string& mode, const std::string& where) {
  if (mode == "echo") return EchoClient(where).Call();
  if (mode == "permit") return AcquireAndRelease(where);
  if (mode == "hold") return Hold(where);
  if (mode == "cycle") return Cycle(where);
  if (mode == "turn") return Turn(where);
  if (mode == "echo-exec") return EchoThenExec(where);
  return absl::InvalidArgumentError(mode);
}

}  // namespace
}  // namespace berth::bench

int main(int argc, char** argv) {
  const absl::string_view mode = argc > 1 ? argv[1] : "";
  absl::Status status;
  if (argc == 8 && mode == "hoard") {
    status = berth::bench::HoldHoard(argv[2], std::atoi(argv[3]),
                                     {.blocks = static_cast<uint32_t>(std::atoi(argv[4])),
                                      .written = argv[5] == absl::string_view("written"),
                                      .permits = static_cast<uint32_t>(std::atoi(argv[6])),
                                      .waiters = static_cast<uint32_t>(std::atoi(argv[7]))});
  } else if (argc == 5 && mode == "contend") {
    status = berth::bench::Contend(argv[2], argv[3], argv[4]);
  } else if (argc == 3) {
    status = berth::bench::Run(argv[1], argv[2]);
  } else {
    std::cerr << "usage: see tests/bench/bench_client.cc\n";
    return 2;
  }
  if (!status.ok()) {
    std::cerr << "bench_client " << argv[1] << ": " << status << "\n";
    return 1;
  }
  return 0;
}
