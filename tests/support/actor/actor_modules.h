// Commands of the test actor that probe devices and request compiled modules.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_MODULES_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_MODULES_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/probe.h>
#include <berth/session.h>

#include "absl/status/statusor.h"

namespace berth::testing {

class ActorModules {
 public:
  explicit ActorModules(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // probe LABEL [device=N] [uuid=UUID] [required|off] [again]
  //     answers "UUID HEALTH", for a host device, too, or "absent KIND"
  // module LABEL CODE [count=FILE] [hold=FIFO] [wait_ms=N] [version=V] [bytes=N]
  //     compiles with a compiler that appends a line to FILE each time and waits for a write to FIFO;
  //     CODE "bad" does not compile. Answers "node", "compiled" or "alone", and the first bytes of the module
  // Errors: kUnimplemented for a verb of another command group.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  absl::StatusOr<std::string> Probe(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Module(const std::vector<std::string>& words);
  Prober& ProberOf(DevicePolicy policy);

  const std::shared_ptr<Session> session_;
  std::map<DevicePolicy, std::shared_ptr<Prober>> probers_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_MODULES_H_
