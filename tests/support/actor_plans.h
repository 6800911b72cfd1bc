// The part of an actor that makes plans.

#ifndef TESTS_SUPPORT_ACTOR_PLANS_H_
#define TESTS_SUPPORT_ACTOR_PLANS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/plan.h"
#include "client/session.h"

namespace berth::testing {

class ActorPlans {
 public:
  explicit ActorPlans(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // plan NAME UNITS [pool=POOL] [reserve=BYTES_PER_UNIT] [wait_ms=N]
  //     answers its tiles, "HOST-0:0-5 HOST-1:5-10"
  // replan NAME       answers them anew
  // plan-release NAME
  // plan-churn COUNT SEED: makes, splits anew and gives back plans of pool a; answers how many
  // Errors: kUnimplemented for a verb that is not about plans.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  absl::StatusOr<std::string> Make(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Churn(uint64_t count, uint64_t seed);

  const std::shared_ptr<Session> session_;
  std::map<std::string, Plan> plans_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_PLANS_H_
