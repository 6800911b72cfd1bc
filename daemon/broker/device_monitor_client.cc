#include "daemon/broker/device_monitor_client.h"

#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/label.h"
#include "common/os/fd_passing.h"
#include "common/status_macros.h"
#include "daemon/device/monitor/event_log.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// Limit of messages read before other fds get their turn.
constexpr int kMessagesPerEvent = 16;

// Converts a reading of the monitor's clock to the broker's time.
absl::Time TimeOf(int64_t monotonic_ns) {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const absl::Duration age = absl::DurationFromTimespec(now) - absl::Nanoseconds(monotonic_ns);
  return EventLoop::SteadyNow() - std::max(age, absl::ZeroDuration());
}

template <size_t kSize>
std::string TextOf(const char (&field)[kSize]) {
  return ToLabel(absl::string_view(field, strnlen(field, kSize)));
}

core::DeviceReading FromWire(const monitor::Reading& reading) {
  core::DeviceReading out = {.taken = TimeOf(reading.taken_ns),
                             .total = Bytes(reading.total),
                             .free = Bytes(reading.free),
                             .rest = Bytes(reading.rest)};
  if (reading.utilisation >= 0) out.utilisation = static_cast<uint32_t>(reading.utilisation);
  for (uint32_t i = 0; i < reading.count; ++i) {
    const monitor::ProcessReading& process = reading.processes[i];
    core::ProcessReading& to = out.processes.emplace_back();
    to.pid = process.pid;
    to.uid = process.uid;
    to.name = TextOf(process.name);
    to.bytes = Bytes(process.bytes);
    to.daemon = process.daemon != 0;
    for (const int32_t ancestor : process.ancestors) {
      if (ancestor != 0) to.ancestors.push_back(ancestor);
    }
  }
  return out;
}

DeviceCondition FromWire(const monitor::Survey& survey) {
  DeviceCondition out = {.health = static_cast<DeviceHealth>(survey.health),
                         .trouble = TextOf(survey.trouble),
                         .read_at = TimeOf(survey.taken_ns),
                         .metrics = survey.metrics};
  for (uint32_t i = 0; i < std::min(survey.instance_count, monitor::Survey::kMaxInstances); ++i) {
    const monitor::Instance& instance = survey.instances[i];
    out.instances.push_back({.uuid = TextOf(instance.uuid),
                             .multiprocessors = instance.multiprocessors,
                             .total = Bytes(instance.total)});
  }
  out.peers = {.nvlink = survey.nvlink_peers & survey.known_peers,
               .any = (survey.peers | survey.nvlink_peers) & survey.known_peers,
               .known = survey.known_peers};
  return out;
}

}  // namespace

DeviceMonitorClient::DeviceMonitorClient(EventLoop* loop, Broker* broker, const std::vector<DeviceRecord>& records)
    : loop_(*loop), broker_(*broker) {
  MutexLock lock(&mu_);
  for (const DeviceRecord& record : records) {
    devices_[record.ordinal].hardware = {
        .pci_id = TextOf(record.pci_id),
        .capability = {.major = static_cast<int>(record.compute_capability / 10),
                       .minor = static_cast<int>(record.compute_capability % 10)},
        .multiprocessors = record.multiprocessors,
        .threads_per_multiprocessor = record.threads_per_multiprocessor,
        .shared_bytes_per_block = record.shared_bytes_per_block,
        .l2_bytes = record.l2_bytes,
        .mig_parent = TextOf(record.mig_parent),
    };
    devices_[record.ordinal].nvlink_peers = record.nvlink_peers;
  }
}

absl::Status DeviceMonitorClient::MonitorIsUp(UniqueFd socket) {
  MonitorIsGone();
  {
    MutexLock lock(&mu_);
    for (auto& [ordinal, reported] : reported_) {
      reported.earlier = reported.latest;
      reported.earlier_total = reported.total;
    }
  }
  socket_ = std::move(socket);
  BERTH_ASSIGN_OR_RETURN(watch_, loop_.Watch(socket_.get(), EPOLLIN, [this](uint32_t) { OnMonitorEvent(); }));
  broker_.Step(
      [](core::Core& core, absl::Time now, core::Effects* effects) { core.MonitorUp(now, effects); });
  return absl::OkStatus();
}

void DeviceMonitorClient::MonitorIsGone() {
  if (!socket_) return;
  loop_.Unwatch(std::exchange(watch_, 0));
  socket_.reset();
  broker_.Step(
      [](core::Core& core, absl::Time now, core::Effects* effects) { core.MonitorDown(now, effects); });
}

void DeviceMonitorClient::OnMonitorEvent() {
  for (int i = 0; i < kMessagesPerEvent && TakeMessage(); ++i) {
  }
}

bool DeviceMonitorClient::TakeMessage() {
  if (!socket_) return false;
  const absl::StatusOr<Message> message = ReceiveMessage(socket_.get());
  if (!message.ok()) {
    if (IsWouldBlock(message.status())) return false;
    // The supervisor starts another monitor.
    MonitorIsGone();
    return false;
  }
  const size_t size = message->bytes.size();
  monitor::Kind kind = {};
  if (size >= sizeof(kind)) memcpy(&kind, message->bytes.data(), sizeof(kind));
  if (kind == monitor::Kind::kReading && size >= monitor::Reading::BytesOf(0) &&
      size <= sizeof(monitor::Reading)) {
    monitor::Reading reading;
    memcpy(&reading, message->bytes.data(), size);
    if (size == monitor::Reading::BytesOf(reading.count)) {
      OnReading(reading);
      return true;
    }
  } else if (kind == monitor::Kind::kSurvey && size == sizeof(monitor::Survey)) {
    monitor::Survey survey;
    memcpy(&survey, message->bytes.data(), size);
    OnSurvey(survey);
    return true;
  }
  spdlog::error("invalid message of {} bytes from the device monitor; disconnecting it", size);
  MonitorIsGone();
  return false;
}

void DeviceMonitorClient::OnReading(const monitor::Reading& reading) {
  const core::DeviceReading read = FromWire(reading);
  {
    MutexLock lock(&mu_);
    const auto found = devices_.find(reading.device);
    if (found == devices_.end()) return;
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.DeviceRead(now, reading.device, read, effects);
  });
}

void DeviceMonitorClient::OnSurvey(const monitor::Survey& survey) {
  DeviceCondition condition = FromWire(survey);
  core::DeviceSurvey seen = {.lost = condition.health == DeviceHealth::kLost, .trouble = condition.trouble};
  bool news = false;
  {
    MutexLock lock(&mu_);
    const auto found = devices_.find(survey.device);
    if (found == devices_.end()) return;
    // A link stays known even if the driver does not answer for its other end.
    uint64_t& links = found->second.nvlink_peers;
    links = condition.peers.nvlink | (links & ~condition.peers.known);
    seen.nvlink_peers = links;
    Reported& reported = reported_[survey.device];
    reported.total = reported.earlier_total + survey.events_total;
    reported.latest = reported.earlier;
    for (uint32_t i = 0; i < std::min(survey.event_count, monitor::Survey::kMaxEvents); ++i) {
      StoreLatest(survey.events[i], &reported.latest);
    }
    condition.events_total = reported.total;
    news = reported.total != found->second.condition.events_total;
    for (const monitor::Event& event : reported.latest) {
      condition.events.push_back(
          {.kind = event.kind, .code = event.code, .count = event.count, .heard_at = TimeOf(event.heard_ns)});
    }
    found->second.condition = std::move(condition);
  }
  broker_.Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    core.DeviceSurveyed(now, survey.device, seen, effects);
    // The core needs no event details, because no decision depends on them.
    if (news) effects->push_back({.what = core::DevicesChanged()});
  });
}

std::map<uint32_t, DeviceLook> DeviceMonitorClient::Look(absl::Time now) const {
  MutexLock lock(&mu_);
  std::map<uint32_t, DeviceLook> devices = devices_;
  for (auto& [ordinal, device] : devices) {
    DeviceCondition& condition = device.condition;
    if (condition.read_at.has_value() && now - *condition.read_at > kFresh) {
      condition.health = DeviceHealth::kSilent;
      condition.trouble = "the driver does not answer";
    }
  }
  return devices;
}

}  // namespace berth
