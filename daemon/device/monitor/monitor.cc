#include "daemon/device/monitor/monitor.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <utility>

#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "common/thread.h"
#include "daemon/device/monitor/monitor_wire.h"

namespace berth {
namespace {

absl::StatusOr<std::vector<DeviceRecord>> TakeDevices(int socket) {
  BERTH_ASSIGN_OR_RETURN(const Message message, ReceiveMessage(socket));
  monitor::Devices devices;
  if (message.bytes.size() != sizeof(devices) || message.fds.size() != 1) {
    return absl::InternalError("the supervisor's first message does not list the devices");
  }
  memcpy(&devices, message.bytes.data(), sizeof(devices));
  std::vector<DeviceRecord> records(devices.count);
  const auto size = static_cast<ssize_t>(records.size() * sizeof(DeviceRecord));
  if (devices.kind != monitor::Kind::kDevices ||
      ::pread(message.fds[0].get(), records.data(), static_cast<size_t>(size), 0) != size) {
    return absl::InternalError("the device table is shorter than the supervisor reported");
  }
  return records;
}

// Reads one device until the process ends.
[[noreturn]] void ReadForEver(int socket, DeviceMeter& meter) {
  while (true) {
    const absl::StatusOr<monitor::Reading> reading = meter.Read();
    if (reading.ok()) {
      ::send(socket, &*reading, monitor::Reading::BytesOf(reading->count), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    const monitor::Survey survey = meter.Survey();
    ::send(socket, &survey, sizeof(survey), MSG_DONTWAIT | MSG_NOSIGNAL);
    // The shutdown ends the process, and another monitor starts.
    if (meter.past_use()) ::shutdown(socket, SHUT_RDWR);
    ::poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(meter.interval())));
  }
}

}  // namespace

absl::Status SendDevices(int socket, int table, uint32_t count) {
  return SendStruct(socket, monitor::Devices{.count = count}, std::span<const int>(&table, 1));
}

absl::Status ServeMonitor(int socket, const MeterMaker& make) {
  BERTH_ASSIGN_OR_RETURN(const std::vector<DeviceRecord> records, TakeDevices(socket));
  for (size_t i = 0; i < records.size(); ++i) {
    // The thread ends with the process, because a hanging driver call cannot be left. If the thread cannot be created,
    // this monitor ends and another starts later.
    const auto read = [socket, meter = std::shared_ptr<DeviceMeter>(make(records, i))] {
      ReadForEver(socket, *meter);
    };
    BERTH_ASSIGN_OR_RETURN(Thread reader, Thread::Start("readings of a device", read));
    reader.detach();
  }
  // After the devices, only the hang-up is expected.
  while (true) {
    absl::StatusOr<Message> message = ReceiveMessage(socket);
    if (message.ok()) continue;
    return IsEndOfStream(message.status()) ? absl::OkStatus() : message.status();
  }
}

}  // namespace berth
