#include "tests/support/actor/actor_plans.h"

#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace berth::testing {
namespace {

absl::StatusOr<PlanOptions> ReadOptions(const std::vector<std::string>& words) {
  PlanOptions options;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &options.units)) {
    return absl::InvalidArgumentError("plan NAME UNITS");
  }
  int64_t wait_ms = -1;
  for (size_t i = 2; i < words.size(); ++i) {
    const std::pair<std::string, std::string> option = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    uint64_t bytes = 0;
    if (option.first == "pool") {
      options.permits = PlanPermits{.pool = option.second};
    } else if (option.first == "devices") {
      options.devices = absl::StrSplit(option.second, ',');
    } else if (option.first == "reserve" && absl::SimpleAtoi(option.second, &bytes)) {
      options.reserve = true;
      options.bytes_per_unit = Bytes(bytes);
    } else if (option.first != "wait_ms" || !absl::SimpleAtoi(option.second, &wait_ms)) {
      return absl::InvalidArgumentError(words[i]);
    }
  }
  if (wait_ms >= 0 && options.permits.has_value()) options.permits->max_wait = absl::Milliseconds(wait_ms);
  return options;
}

std::string TilesOf(const Plan& plan) {
  std::string text;
  for (const PlanTile& tile : plan.tiles()) {
    absl::StrAppend(&text, text.empty() ? "" : " ", tile.device_uuid, ":", tile.begin, "-", tile.end);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ActorPlans::Do(const std::string& verb, const std::vector<std::string>& words) {
  if (verb == "plan") return Make(words);
  uint64_t count = 0, seed = 0;
  if (verb == "plan-churn" && words.size() == 2 && absl::SimpleAtoi(words[0], &count) &&
      absl::SimpleAtoi(words[1], &seed)) {
    return Churn(count, seed);
  }
  const auto plan = words.empty() ? plans_.end() : plans_.find(words[0]);
  if (plan == plans_.end()) return absl::UnimplementedError(verb);
  if (verb == "replan") {
    BERTH_RETURN_IF_ERROR(plan->second.Replan().status());
    return TilesOf(plan->second);
  }
  if (verb == "plan-stale") return plan->second.stale() ? "1" : "0";
  if (verb == "plan-release") {
    BERTH_RETURN_IF_ERROR(plan->second.Release());
    plans_.erase(plan);
    return "";
  }
  return absl::UnimplementedError(verb);
}

absl::StatusOr<std::string> ActorPlans::Make(const std::vector<std::string>& words) {
  BERTH_ASSIGN_OR_RETURN(const PlanOptions options, ReadOptions(words));
  BERTH_ASSIGN_OR_RETURN(Plan plan, Plan::Make(session_, options));
  std::string tiles = TilesOf(plan);
  plans_.insert_or_assign(words[0], std::move(plan));
  return tiles;
}

absl::StatusOr<std::string> ActorPlans::Churn(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  uint64_t made = 0;
  for (uint64_t i = 0; i < count; ++i) {
    PlanOptions options{.units = 1 + random() % 100};
    if (random() % 2 == 0) options.bytes_per_unit = Bytes(1 + random() % 4096);
    options.reserve = options.bytes_per_unit > Bytes() && random() % 2 == 0;
    options.max_devices = random() % 3;
    if (random() % 3 != 0) {
      options.permits =
          PlanPermits{.pool = "a", .max_wait = absl::Milliseconds(static_cast<int64_t>(random() % 40))};
    }
    absl::StatusOr<Plan> plan = Plan::Make(session_, options);
    absl::Status status = plan.status();
    if (plan.ok()) {
      ++made;
      if (random() % 2 == 0) status = plan->Replan({.reweigh = random() % 2 == 0}).status();
    }
    if (!status.ok() && !absl::IsDeadlineExceeded(status) && !absl::IsResourceExhausted(status) &&
        !absl::IsFailedPrecondition(status)) {
      return status;
    }
  }
  return absl::StrCat(made);
}

}  // namespace berth::testing
