// Commands of the test actor that acquire several permits together.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_GANGS_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_GANGS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/gang.h>
#include <berth/session.h>

#include "absl/status/statusor.h"

namespace berth::testing {

class ActorGangs {
 public:
  explicit ActorGangs(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // gang NAME POOL:UNITS[:DEVICE]... [reserve=DEVICE:BYTES] [wait_ms=N] [key=KEY] [independent]
  //     answers the UUIDs of its devices in the members' order, "-" for a member without a device
  // gang-release NAME      gang-keep NAME INDEX: releases all permits except that of INDEX
  // gang-churn COUNT SEED: acquires and releases gangs of one to three permits of pools a and b; answers how many
  // Errors: kUnimplemented for a verb of another command group.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  absl::StatusOr<std::string> Acquire(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Churn(uint64_t count, uint64_t seed);

  const std::shared_ptr<Session> session_;
  std::map<std::string, Gang> gangs_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_GANGS_H_
