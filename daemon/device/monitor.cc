#include "daemon/device/monitor.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "common/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/device/monitor_wire.h"

namespace berth {
namespace {

absl::StatusOr<std::vector<DeviceRecord>> TakeDevices(int socket) {
  BERTH_ASSIGN_OR_RETURN(const Message message, ReceiveMessage(socket));
  monitor::Devices devices;
  if (message.bytes.size() != sizeof(devices) || message.fds.size() != 1) {
    return absl::InternalError("the vault's first message is none of the devices");
  }
  memcpy(&devices, message.bytes.data(), sizeof(devices));
  std::vector<DeviceRecord> records(devices.count);
  const auto size = static_cast<ssize_t>(records.size() * sizeof(DeviceRecord));
  if (devices.kind != monitor::Kind::kDevices ||
      ::pread(message.fds[0].get(), records.data(), static_cast<size_t>(size), 0) != size) {
    return absl::InternalError("the device table is shorter than the vault says");
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
    // What ends the process: another one follows.
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
    // It ends with the process: there is no way out of a driver that hangs.
    std::thread([socket, meter = std::shared_ptr<DeviceMeter>(make(records, i))] {
      ReadForEver(socket, *meter);
    }).detach();
  }
  // Nothing comes any more but the end.
  while (true) {
    absl::StatusOr<Message> message = ReceiveMessage(socket);
    if (message.ok()) continue;
    return IsEndOfStream(message.status()) ? absl::OkStatus() : message.status();
  }
}

}  // namespace berth
