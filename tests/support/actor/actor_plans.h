// Plan commands of the test actor.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_PLANS_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_PLANS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/plan.h>
#include <berth/session.h>

#include "absl/status/statusor.h"

namespace berth::testing {

class ActorPlans {
 public:
  explicit ActorPlans(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // plan NAME UNITS [pool=POOL] [reserve=BYTES_PER_UNIT] [wait_ms=N] [devices=UUID,...]
  //     answers its tiles, "HOST-0:0-5 HOST-1:5-10"
  // replan NAME       answers its new tiles
  // plan-stale NAME   answers 1 or 0
  // plan-release NAME
  // plan-churn COUNT SEED: makes, splits anew and releases plans of pool a; answers how many
  // Errors: kUnimplemented for a verb of another command group.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  absl::StatusOr<std::string> Make(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Churn(uint64_t count, uint64_t seed);

  const std::shared_ptr<Session> session_;
  std::map<std::string, Plan> plans_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_PLANS_H_
