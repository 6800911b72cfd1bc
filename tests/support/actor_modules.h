// The part of an actor that probes devices and wants compiled modules.

#ifndef TESTS_SUPPORT_ACTOR_MODULES_H_
#define TESTS_SUPPORT_ACTOR_MODULES_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/probe.h"
#include "client/session.h"

namespace berth::testing {

class ActorModules {
 public:
  explicit ActorModules(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  // probe LABEL [device=N] [uuid=UUID] [required|off] [again]
  //     answers "UUID HEALTH", of a host device, too, or "absent KIND"
  // module LABEL CODE [count=FILE] [hold=FIFO] [wait_ms=N] [version=V] [bytes=N]
  //     compiles by a compiler that adds a line to FILE each time, and waits for somebody to write to FIFO; CODE "bad"
  //     does not compile. Answers "node", "compiled" or "alone", and what the module begins with
  // Errors: kUnimplemented for a verb that is not about these.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  absl::StatusOr<std::string> Probe(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Module(const std::vector<std::string>& words);
  Prober& ProberOf(DevicePolicy policy);

  const std::shared_ptr<Session> session_;
  std::map<DevicePolicy, std::shared_ptr<Prober>> probers_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_MODULES_H_
