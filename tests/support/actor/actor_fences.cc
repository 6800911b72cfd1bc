#include "tests/support/actor/actor_fences.h"

#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/fences/fences.h"
#include "common/status_macros.h"

namespace berth::testing {
namespace {

std::string TornText(const LaunchRecorder& launch) { return launch.torn().empty() ? "" : "torn"; }

}  // namespace

absl::StatusOr<std::string> ActorFences::Do(const std::string& verb, const std::vector<std::string>& words) {
  static const auto* const kVerbs =
      new std::set<std::string>{"stream",     "close-stream", "sync",       "gate",    "open-gate", "queue-fill",
                                "queue-check", "preflight",   "commit",     "abandon", "use-churn", "churned",
                                "await-churn", "stop-churn",  "count",      "clear-torn"};
  if (!kVerbs->contains(verb)) return absl::UnimplementedError(verb);
  if (words.empty()) return absl::InvalidArgumentError(verb);
  if (verb == "stream") return Open(words);
  if (verb == "preflight") return Preflight(words);
  if (verb == "clear-torn") {
    BERTH_ASSIGN_OR_RETURN(const Mapping mapping, blocks_.MappingOf(words[0]));
    BERTH_RETURN_IF_ERROR(
        Inspector(session_).ClearTorn(internal::RecordableOf(mapping).block->id()).status());
    return "";
  }
  if (verb.ends_with("churn") || verb == "churned" || verb == "count") return DoChurn(verb, words);
  if (verb == "commit" || verb == "abandon") {
    const auto at = launches_.find(words[0]);
    if (at == launches_.end()) return absl::NotFoundError(words[0]);
    const std::unique_ptr<LaunchRecorder> launch = std::move(at->second);
    launches_.erase(at);
    if (verb == "abandon") return "";
    BERTH_RETURN_IF_ERROR(launch->Commit());
    return TornText(*launch);
  }
  const auto queued = streams_.find(words[0]);
  if (queued == streams_.end()) return absl::NotFoundError(words[0]);
  if (verb == "close-stream") {
    streams_.erase(queued);
    return "";
  }
  return DoOn(queued->second, verb, words);
}

absl::StatusOr<std::string> ActorFences::Open(const std::vector<std::string>& words) {
  const StreamOptions options = {.default_stream = words.size() > 1 && words[1] == "default"};
  BERTH_ASSIGN_OR_RETURN(std::shared_ptr<Stream> stream, Stream::OpenHost(session_, options));
  const uint32_t id = stream->id();
  streams_[words[0]].stream = std::move(stream);
  return absl::StrCat(id);
}

absl::StatusOr<std::string> ActorFences::DoOn(QueuedStream& queued, const std::string& verb,
                                              const std::vector<std::string>& words) {
  if (verb == "sync") {
    BERTH_RETURN_IF_ERROR(queued.stream->Synchronize());
    const absl::Status checks = std::exchange(queued.checks, absl::OkStatus());
    if (!checks.ok()) return checks;
    return "";
  }
  if (verb == "gate") {
    const auto gate = std::make_shared<Notification>();
    queued.gates.push_back(gate);
    BERTH_RETURN_IF_ERROR(queued.stream->Enqueue([gate] { gate->WaitForNotification(); }));
    return "";
  }
  if (verb == "open-gate") {
    if (queued.gates.empty()) return absl::FailedPreconditionError("no gate");
    queued.gates.front()->Notify();
    queued.gates.pop_front();
    return "";
  }
  uint64_t seed = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[2], &seed)) return absl::InvalidArgumentError(verb);
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, blocks_.MappingOf(words[1]));
  BERTH_RETURN_IF_ERROR(queued.stream->Enqueue([&queued, mapping, seed, fill = verb == "queue-fill"] {
    if (fill) {
      FillPattern(mapping.data(), mapping.size(), seed);
    } else if (queued.checks.ok()) {
      queued.checks = CheckPattern(mapping.data(), mapping.size(), seed);
    }
  }));
  return "";
}

absl::StatusOr<std::string> ActorFences::DoChurn(const std::string& verb,
                                                 const std::vector<std::string>& words) {
  if (verb == "churned" || verb == "await-churn" || verb == "stop-churn") {
    const auto at = churns_.find(words[0]);
    if (at == churns_.end()) return absl::NotFoundError(words[0]);
    if (verb == "churned") return absl::StrCat(at->second->made());
    const std::unique_ptr<Churn> churn = std::move(at->second);
    churns_.erase(at);
    BERTH_ASSIGN_OR_RETURN(const uint64_t uses, verb == "stop-churn" ? churn->Stop() : churn->Await());
    return absl::StrCat(uses);
  }
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, blocks_.MappingOf(words[0]));
  if (verb == "count") {
    const auto queued = words.size() == 1 ? streams_.end() : streams_.find(words[1]);
    if (words.size() > 1 && queued == streams_.end()) return absl::NotFoundError(words[1]);
    BERTH_ASSIGN_OR_RETURN(const uint64_t count, words.size() == 1
                                                     ? Churn::Count(mapping)
                                                     : Churn::CountInUse(mapping, *queued->second.stream));
    return absl::StrCat(count);
  }
  uint64_t uses = 0;
  std::vector<std::shared_ptr<Stream>> streams;
  for (size_t i = 2; i < words.size(); ++i) {
    const auto queued = streams_.find(words[i]);
    if (queued == streams_.end()) return absl::NotFoundError(words[i]);
    streams.push_back(queued->second.stream);
  }
  if (streams.empty() || !absl::SimpleAtoi(words[1], &uses)) return absl::InvalidArgumentError(verb);
  churns_[words[0]] = std::make_unique<Churn>(mapping, std::move(streams), uses);
  return "";
}

absl::StatusOr<std::string> ActorFences::Preflight(const std::vector<std::string>& words) {
  const auto queued = words.size() < 2 ? streams_.end() : streams_.find(words[1]);
  if (queued == streams_.end()) return absl::NotFoundError("preflight LAUNCH STREAM");
  auto launch = std::make_unique<LaunchRecorder>(*queued->second.stream);
  absl::Duration patience = LaunchRecorder::kPatience;
  for (size_t i = 2; i < words.size(); ++i) {
    const std::pair<std::string, std::string> option = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    int64_t milliseconds = 0;
    if (option.first == "ms" && absl::SimpleAtoi(option.second, &milliseconds)) {
      patience = absl::Milliseconds(milliseconds);
      continue;
    }
    const std::pair<std::string, std::string> use = absl::StrSplit(words[i], absl::MaxSplits(':', 1));
    BERTH_ASSIGN_OR_RETURN(const Mapping mapping, blocks_.MappingOf(use.first));
    if (use.second == "r") launch->Read(mapping);
    if (use.second == "w") launch->Write(mapping);
    if (use.second == "rw") launch->ReadWrite(mapping);
  }
  BERTH_RETURN_IF_ERROR(launch->Preflight(patience));
  const std::string torn = TornText(*launch);
  launches_[words[0]] = std::move(launch);
  return torn;
}

}  // namespace berth::testing
