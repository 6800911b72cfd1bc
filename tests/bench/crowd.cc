#include "tests/bench/crowd.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "tests/bench/witness.h"

namespace berth::bench {
namespace {

// A host device has no bytes of its own before they are written, so its figures may be larger than the machine's.
constexpr const char* kRoom = "64GiB";
constexpr absl::Duration kPatience = absl::Minutes(2);

}  // namespace

std::vector<std::string> Crowd::Flags(const Programs& programs) {
  if (programs.backend != "host") return {};
  return {absl::StrCat("--host-bytes=", kRoom), absl::StrCat("--device-budget=", kRoom)};
}

absl::StatusOr<Crowd> Crowd::Start(const Programs& programs, const std::string& folder) {
  BERTH_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  Crowd crowd;
  for (size_t i = 0; i < kProcesses; ++i) {
    BERTH_ASSIGN_OR_RETURN(ChildProcess child,
                           ChildProcess::Start({.command = {programs.client, "fill", folder,
                                                            absl::StrCat(kSessions / kProcesses),
                                                            absl::StrCat(kBlocks / kSessions)},
                                                .pipe = pipe.write.get()}));
    crowd.children_.push_back(std::move(child));
  }
  pipe.write.reset();
  for (size_t i = 0; i < kProcesses; ++i) {
    BERTH_RETURN_IF_ERROR(AwaitReadable(pipe.read.get(), kPatience));
    Fact fact;
    if (::read(pipe.read.get(), &fact, sizeof(fact)) != sizeof(fact)) {
      return absl::InternalError("a client of the crowd ended before it had its blocks");
    }
  }
  return crowd;
}

}  // namespace berth::bench
