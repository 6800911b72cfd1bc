// IdleSink carries nothing out: for tests, which override what they look at.

#ifndef DAEMON_BROKER_IDLE_SINK_H_
#define DAEMON_BROKER_IDLE_SINK_H_

#include "daemon/broker/broker.h"

namespace berth {

class IdleSink : public EffectSink {
 public:
  void Carry(const core::CreateBlock&) override {}
  void Carry(const core::ReleaseBlock&) override {}
  void Carry(const core::MakeFencePage&) override {}
  void Carry(const core::DropFencePage&) override {}
  void Carry(const core::Deliver&) override {}
  void Carry(const core::CloseChannel&) override {}
  void Carry(const core::DropChannel&) override {}
  void Carry(const core::DropSession&) override {}
  void Carry(const core::OrderDevice&) override {}
  void Carry(const core::DevicesChanged&) override {}
  void Carry(const core::LogRecord&) override {}
  void Carry(const core::LeaseRecord&) override {}
  void Carry(const core::ModuleWork&) override {}
  void ArmTimer(absl::Time) override {}
  void Wake() override {}
};

}  // namespace berth

#endif  // DAEMON_BROKER_IDLE_SINK_H_
