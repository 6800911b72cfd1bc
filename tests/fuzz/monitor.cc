// The monitor's messages to the broker.

#include <memory>
#include <utility>

#include <berth/bytes.h>

#include "daemon/broker/broker.h"
#include "daemon/broker/device_monitor_client.h"
#include "daemon/broker/event_loop.h"
#include "daemon/broker/testing/idle_sink.h"
#include "daemon/core/core.h"
#include "daemon/device/monitor/monitor_wire.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/messages.h"

namespace berth::fuzz {
namespace {

core::Config ConfigOfOne() {
  core::Config config{.node = 1, .incarnation = 1};
  config.devices.push_back({.ordinal = 0, .uuid = "GPU-0", .total = MiB(64), .budget = MiB(64)});
  return config;
}

class MonitorClient {
 public:
  MonitorClient()
      : core_(ConfigOfOne(), [this] { return ++last_id_; }, [](core::StreamKey) { return core::FenceValues(); }),
        broker_(&core_, &sink_),
        loop_(*EventLoop::Create()),
        monitor_client_(loop_.get(), &broker_, std::vector<DeviceRecord>(1)) {
    loop_->SetTimerCallback([] {});
    loop_->SetWakeCallback([this] { loop_->Stop(); });
  }

  void Hear(UniqueFd socket) {
    if (!monitor_client_.MonitorIsUp(std::move(socket)).ok()) return;
    loop_->Wake();
    loop_->Run();
    monitor_client_.Look(EventLoop::SteadyNow());
  }

 private:
  uint64_t last_id_ = 0;
  IdleSink sink_;
  core::Core core_;
  Broker broker_;
  std::unique_ptr<EventLoop> loop_;
  DeviceMonitorClient monitor_client_;
};

}  // namespace

std::vector<std::string> Seeds() {
  monitor::Reading reading = {.count = 1, .taken_ns = 1, .total = 100, .free = 40, .utilisation = 3};
  reading.processes[0] = {.pid = 1, .bytes = 10, .name = "python"};
  monitor::Survey survey = {.taken_ns = 1, .event_count = 1, .trouble = "hot", .known_peers = 1, .instance_count = 1};
  survey.instances[0] = {.uuid = "MIG-1", .multiprocessors = 16, .total = 10};
  const std::string read = AsInput(BytesOf(reading).substr(0, monitor::Reading::BytesOf(1)));
  return {read, AsInput(BytesOf(survey)), read + AsInput(BytesOf(survey)) + read};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  berth::fuzz::MonitorClient().Hear(berth::fuzz::SocketWith({reinterpret_cast<const char*>(data), size}));
  return 0;
}
