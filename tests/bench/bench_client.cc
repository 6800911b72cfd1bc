// One client process of a benchmark.
//
//   bench_client echo SOCKET     one bare echo
//   bench_client permit FOLDER   opens a session, acquires a permit, releases it
//   bench_client hold FOLDER     acquires a permit, tells so on fd 3, holds it until killed
//   bench_client cycle FOLDER    acquires and releases until killed, telling both on fd 3
//   bench_client fill FOLDER S B opens S sessions of B small blocks each, tells so on fd 3, holds them until killed
//
// Ends with 0 if all went well.

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/block.h"
#include "client/permit.h"
#include "client/session.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "tests/bench/child_process.h"
#include "tests/bench/echo_client.h"
#include "tests/bench/stopwatch.h"
#include "tests/bench/witness.h"

namespace berth::bench {
namespace {

absl::Status Tell(Fact::Kind kind) {
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
  BERTH_RETURN_IF_ERROR(Tell(Fact::Kind::kHolds));
  while (true) ::pause();
}

absl::Status Cycle(const std::string& folder) {
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, OpenSession(folder));
  while (true) {
    BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session));
    BERTH_RETURN_IF_ERROR(Tell(Fact::Kind::kHolds));
    BERTH_RETURN_IF_ERROR(Tell(Fact::Kind::kReleases));
    BERTH_RETURN_IF_ERROR(permit.Release());
  }
}

absl::Status Fill(const std::string& folder, int sessions, int blocks_each) {
  std::vector<Block> blocks;
  for (int i = 0; i < sessions; ++i) {
    BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                           Session::Open({.folder = folder, .label = "bench", .always_new = true}));
    for (int block = 0; block < blocks_each; ++block) {
      BERTH_ASSIGN_OR_RETURN(Block held, Block::Allocate(session, {.bytes = MiB(2)}));
      blocks.push_back(std::move(held));
    }
  }
  BERTH_RETURN_IF_ERROR(Tell(Fact::Kind::kHolds));
  while (true) ::pause();
}

absl::Status Run(const std::string& mode, const std::string& where) {
  if (mode == "echo") return EchoClient(where).Call();
  if (mode == "permit") return AcquireAndRelease(where);
  if (mode == "hold") return Hold(where);
  if (mode == "cycle") return Cycle(where);
  return absl::InvalidArgumentError(mode);
}

}  // namespace
}  // namespace berth::bench

int main(int argc, char** argv) {
  const bool fills = argc == 5 && absl::string_view(argv[1]) == "fill";
  if (argc != 3 && !fills) {
    std::cerr << "usage: bench_client echo|permit|hold|cycle WHERE | fill FOLDER SESSIONS BLOCKS\n";
    return 2;
  }
  const absl::Status status = fills ? berth::bench::Fill(argv[2], std::atoi(argv[3]), std::atoi(argv[4]))
                                    : berth::bench::Run(argv[1], argv[2]);
  if (!status.ok()) {
    std::cerr << "bench_client " << argv[1] << ": " << status << "\n";
    return 1;
  }
  return 0;
}
