#include "tests/support/actor/actor_gangs.h"

#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace berth::testing {
namespace {

// POOL:UNITS[:DEVICE].
absl::StatusOr<GangMember> ReadMember(const std::string& word) {
  const std::vector<std::string> parts = absl::StrSplit(word, ':');
  GangMember member{.pool = parts[0]};
  if (parts.size() < 2 || parts.size() > 3 || !absl::SimpleAtoi(parts[1], &member.units)) {
    return absl::InvalidArgumentError(word);
  }
  if (parts.size() == 3) member.device = parts[2];
  return member;
}

absl::StatusOr<GangOptions> ReadOptions(const std::vector<std::string>& words) {
  GangOptions options;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> option = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    int64_t number = 0;
    if (option.first == "key") {
      options.holder_key = option.second;
    } else if (option.first == "wait_ms" && absl::SimpleAtoi(option.second, &number)) {
      options.max_wait = absl::Milliseconds(number);
    } else if (option.first == "independent") {
      options.independent = true;
    } else if (option.first == "reserve") {
      const std::pair<std::string, std::string> item = absl::StrSplit(option.second, ':');
      ReservationItem& to = options.reserve.emplace_back();
      uint64_t bytes = 0;
      if (!absl::SimpleAtoi(item.first, &to.device) || !absl::SimpleAtoi(item.second, &bytes)) {
        return absl::InvalidArgumentError(words[i]);
      }
      to.bytes = Bytes(bytes);
    } else {
      BERTH_ASSIGN_OR_RETURN(GangMember member, ReadMember(words[i]));
      options.members.push_back(std::move(member));
    }
  }
  return options;
}

}  // namespace

absl::StatusOr<std::string> ActorGangs::Do(const std::string& verb, const std::vector<std::string>& words) {
  if (verb == "gang" && !words.empty()) return Acquire(words);
  uint64_t number = 0, seed = 0;
  if (verb == "gang-churn" && words.size() == 2 && absl::SimpleAtoi(words[0], &number) &&
      absl::SimpleAtoi(words[1], &seed)) {
    return Churn(number, seed);
  }
  const auto gang = words.empty() ? gangs_.end() : gangs_.find(words[0]);
  if (gang == gangs_.end()) return absl::UnimplementedError(verb);
  if (verb == "gang-release") {
    BERTH_RETURN_IF_ERROR(gang->second.Release());
    gangs_.erase(gang);
    return "";
  }
  if (verb == "gang-keep" && words.size() == 2 && absl::SimpleAtoi(words[1], &number)) {
    for (size_t i = 0; i < gang->second.permits().size(); ++i) {
      if (i != number) BERTH_RETURN_IF_ERROR(gang->second.permits()[i].Release());
    }
    return "";
  }
  return absl::UnimplementedError(verb);
}

absl::StatusOr<std::string> ActorGangs::Acquire(const std::vector<std::string>& words) {
  BERTH_ASSIGN_OR_RETURN(const GangOptions options, ReadOptions(words));
  BERTH_ASSIGN_OR_RETURN(Gang gang, Gang::Acquire(session_, options));
  std::vector<std::string> devices;
  for (const Permit& permit : gang.permits()) {
    devices.push_back(permit.device_uuid().empty() ? "-" : permit.device_uuid());
  }
  gangs_.insert_or_assign(words[0], std::move(gang));
  return absl::StrJoin(devices, " ");
}

absl::StatusOr<std::string> ActorGangs::Churn(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  uint64_t granted = 0;
  for (uint64_t i = 0; i < count; ++i) {
    GangOptions options{.max_wait = absl::Milliseconds(static_cast<int64_t>(random() % 40))};
    for (uint64_t members = 1 + random() % 3; members > 0; --members) {
      options.members.push_back(
          {.pool = random() % 2 == 0 ? "a" : "b", .device = random() % 2 == 0 ? "any" : ""});
    }
    const absl::StatusOr<Gang> gang = Gang::Acquire(session_, options);
    if (gang.ok()) {
      ++granted;
    } else if (!absl::IsDeadlineExceeded(gang.status()) && !absl::IsResourceExhausted(gang.status()) &&
               !absl::IsFailedPrecondition(gang.status())) {
      return gang.status();
    }
  }
  return absl::StrCat(granted);
}

}  // namespace berth::testing
