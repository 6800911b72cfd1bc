#include "tests/support/actor/actor_lies.h"

#include <errno.h>
#include <sys/mman.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/sdk/fences/session_fences.h"
#include "client/sdk/transport/session_core.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "tests/support/actor/actor_wire.h"

namespace berth::testing {

using internal::RemotePrepared;
using internal::RemoteUse;
using internal::UseAccess;

absl::StatusOr<std::string> ActorLies::Do(const std::string& verb, const std::vector<std::string>& words) {
  if (verb.starts_with("claim-") && words.size() == 2) return SendLie(verb, words);
  if (verb == "retain" && words.size() == 1) return Retain(words[0]);
  if (verb == "let-go" && words.size() == 1) {
    uint64_t import = 0;
    if (!absl::SimpleAtoi(words[0], &import)) return absl::InvalidArgumentError(words[0]);
    session_->core()->channel().LetGo(ImportId(import));
    return "";
  }
  if (!verb.ends_with("-retained") || words.size() != 2) return absl::UnimplementedError(verb);
  const auto retained = retained_.find(words[0]);
  uint64_t seed = 0;
  if (retained == retained_.end() || !absl::SimpleAtoi(words[1], &seed)) return absl::NotFoundError(words[0]);
  if (verb == "fill-retained") {
    FillPattern(retained->second.at, retained->second.bytes, seed);
    return "";
  }
  BERTH_RETURN_IF_ERROR(CheckPattern(retained->second.at, retained->second.bytes, seed));
  return "";
}

absl::StatusOr<std::string> ActorLies::SendLie(const std::string& verb, const std::vector<std::string>& words) {
  if (!stream_.has_value()) {
    fences_ = internal::SessionFences::Of(session_->core());
    BERTH_ASSIGN_OR_RETURN(stream_, fences_->daemon->OpenStream(/*device=*/0, /*default_stream=*/false));
  }
  uint64_t number = 0;
  if (!absl::SimpleAtoi(words[1], &number)) return absl::InvalidArgumentError(words[1]);
  internal::FenceDaemon& daemon = *fences_->daemon;
  if (verb == "claim-use") {
    uint64_t use = 0;
    if (!absl::SimpleAtoi(words[0], &use)) return absl::InvalidArgumentError(words[0]);
    BERTH_RETURN_IF_ERROR(daemon.Finish(UseId(use), number).status());
    return "";
  }
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, blocks_.MappingOf(words[0]));
  const RemoteUse use = {.block = internal::RecordableOf(mapping).block->id(), .access = UseAccess::kWrite};
  const uint32_t slot = verb == "claim-prepare" ? static_cast<uint32_t>(number) : stream_->slot;
  BERTH_ASSIGN_OR_RETURN(const RemotePrepared prepared,
                         daemon.Prepare(slot, absl::MakeSpan(&use, 1), absl::Seconds(1)));
  const absl::Status finished = daemon.Finish(prepared.use, number).status();
  if (!finished.ok()) daemon.Abandon(prepared.use);
  if (!finished.ok()) return finished;
  return "";
}

absl::StatusOr<std::string> ActorLies::Retain(const std::string& block) {
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, blocks_.MappingOf(block));
  // An old size of 0 requests a second mapping of the same pages.
  void* const at = ::mremap(mapping.data(), 0, mapping.size(), MREMAP_MAYMOVE);
  if (at == MAP_FAILED) return OsError("mremap", errno);
  retained_[block] = {.at = at, .bytes = mapping.size()};
  return "";
}

}  // namespace berth::testing
