#include "tests/bench/measurements/crowd.h"

#include <errno.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "tests/bench/witness.h"

namespace berth::bench {
namespace {

// A host device uses no memory before a block is written, so its size may exceed the machine's.
constexpr const char* kCapacity = "64GiB";
constexpr absl::Duration kPatience = absl::Minutes(2);

}  // namespace

std::vector<std::string> Crowd::Flags(const Programs& programs, const HoardShare& share) {
  std::vector<std::string> flags;
  if (programs.backend == "host") {
    flags = {absl::StrCat("--host-bytes=", kCapacity), absl::StrCat("--device-budget=", kCapacity)};
  }
  if (share.permits > 0) flags.push_back(absl::StrCat("--pool=", kHoardPool, "=", kSessions * share.permits));
  return flags;
}

absl::StatusOr<Crowd> Crowd::Start(const Programs& programs, const std::string& folder, const HoardShare& share) {
  BERTH_ASSIGN_OR_RETURN(Pipe facts, MakePipe());
  Crowd crowd(std::move(facts));
  for (size_t i = 0; i < kProcesses; ++i) {
    BERTH_ASSIGN_OR_RETURN(Pipe commands, MakePipe());
    BERTH_ASSIGN_OR_RETURN(
        ChildProcess process,
        ChildProcess::Start({.command = {programs.client, "hoard", folder, absl::StrCat(kSessions / kProcesses),
                                         absl::StrCat(share.blocks), share.written ? "written" : "bare",
                                         absl::StrCat(share.permits), absl::StrCat(share.waiters)},
                             .pipe = crowd.facts_.write.get(),
                             .input = commands.read.get()}));
    crowd.clients_.push_back({.commands = std::move(commands.write), .process = std::move(process)});
  }
  BERTH_RETURN_IF_ERROR(crowd.AwaitAll());
  BERTH_RETURN_IF_ERROR(crowd.Have('w'));
  return crowd;
}

absl::Status Crowd::Have(char command) {
  for (const Client& client : clients_) {
    if (::write(client.commands.get(), &command, 1) != 1) return OsError("write", errno);
  }
  return AwaitAll();
}

absl::Status Crowd::AwaitAll() {
  for (size_t i = 0; i < kProcesses; ++i) {
    BERTH_RETURN_IF_ERROR(AwaitReadable(facts_.read.get(), kPatience));
    Fact fact;
    if (::read(facts_.read.get(), &fact, sizeof(fact)) != sizeof(fact)) return OsError("read", errno);
    if (fact.kind != Fact::Kind::kDone) return absl::InternalError("a client of the crowd failed");
  }
  return absl::OkStatus();
}

}  // namespace berth::bench
