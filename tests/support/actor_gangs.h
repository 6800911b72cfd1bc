// The part of an actor that acquires several permits together.

#ifndef TESTS_SUPPORT_ACTOR_GANGS_H_
#define TESTS_SUPPORT_ACTOR_GANGS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/gang.h"
#include "client/session.h"

namespace berth::testing {

class ActorGangs {
 public:
  explicit ActorGangs(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // gang NAME POOL:UNITS[:DEVICE]... [reserve=DEVICE:BYTES] [wait_ms=N] [key=KEY] [independent]
  //     answers the UUIDs of its devices in the members' order, "-" for none
  // gang-release NAME      gang-keep NAME INDEX: gives back all permits but that one
  // gang-churn COUNT SEED: acquires and gives back gangs of one to three permits of pools a and b; answers how many
  // Errors: kUnimplemented for a verb that is not about gangs.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  absl::StatusOr<std::string> Acquire(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Churn(uint64_t count, uint64_t seed);

  const std::shared_ptr<Session> session_;
  std::map<std::string, Gang> gangs_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_GANGS_H_
