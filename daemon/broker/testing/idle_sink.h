// IdleSink ignores every effect. Tests override the effects that they inspect.

#ifndef DAEMON_BROKER_TESTING_IDLE_SINK_H_
#define DAEMON_BROKER_TESTING_IDLE_SINK_H_

#include "daemon/broker/broker.h"

namespace berth {

class IdleSink : public EffectSink {
 public:
  void Apply(const core::CreateBlock&) override {}
  void Apply(const core::ReleaseBlock&) override {}
  void Apply(const core::MakeFencePage&) override {}
  void Apply(const core::DropFencePage&) override {}
  void Apply(const core::Deliver&) override {}
  void Apply(const core::CloseChannel&) override {}
  void Apply(const core::DropChannel&) override {}
  void Apply(const core::DropSession&) override {}
  void Apply(const core::SendWorkerCommand&) override {}
  void Apply(const core::DevicesChanged&) override {}
  void Apply(const core::LogRecord&) override {}
  void Apply(const core::LeaseRecord&) override {}
  void Apply(const core::ModuleWork&) override {}
  void Apply(const core::LookAtProcesses&) override {}
  void ArmTimer(absl::Time) override {}
  void Wake() override {}
};

}  // namespace berth

#endif  // DAEMON_BROKER_TESTING_IDLE_SINK_H_
