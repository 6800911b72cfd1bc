#include "daemon/device/monitor/event_log.h"

#include <algorithm>
#include <utility>

namespace berth {

void StoreLatest(const monitor::Event& event, std::vector<monitor::Event>* latest) {
  monitor::Event stored = event;
  const auto same = std::find_if(latest->begin(), latest->end(), [&](const monitor::Event& one) {
    return one.kind == event.kind && one.code == event.code;
  });
  if (same != latest->end()) {
    stored.count += same->count;
    latest->erase(same);
  } else if (latest->size() == monitor::Survey::kMaxEvents) {
    latest->erase(latest->begin());
  }
  latest->push_back(stored);
}

void EventLog::Add(DeviceEventKind kind, uint64_t code, int64_t heard_ns) {
  if (kind == DeviceEventKind::kXid) return Log(kind, code, 1, heard_ns);
  ++ErrorsOf(kind).reported;
  LogErrors(kind, heard_ns);
}

void EventLog::AddRises(const DeviceMetrics& metrics, int64_t heard_ns) {
  for (const auto& [kind, metric] : {std::pair(DeviceEventKind::kCorrectedEcc, DeviceMetric::kCorrectedErrors),
                                     std::pair(DeviceEventKind::kUncorrectedEcc, DeviceMetric::kUncorrectedErrors)}) {
    if (!metrics[metric].known()) continue;
    Errors& errors = ErrorsOf(kind);
    const uint64_t now = metrics[metric].value;
    const uint64_t before = errors.counter.value_or(now);
    errors.counter = now;
    errors.counted += now >= before ? now - before : now;
    LogErrors(kind, heard_ns);
  }
}

void EventLog::LogErrors(DeviceEventKind kind, int64_t heard_ns) {
  Errors& errors = ErrorsOf(kind);
  const uint64_t known = std::max(errors.counted, errors.reported);
  if (known > errors.logged) Log(kind, 0, known - std::exchange(errors.logged, known), heard_ns);
}

void EventLog::Log(DeviceEventKind kind, uint64_t code, uint64_t count, int64_t heard_ns) {
  total_ += count;
  StoreLatest({.kind = kind, .code = code, .count = count, .heard_ns = heard_ns, .number = total_}, &latest_);
}

void EventLog::CopyTo(monitor::Survey* survey) const {
  survey->events_total = total_;
  survey->event_count = static_cast<uint32_t>(latest_.size());
  std::copy(latest_.begin(), latest_.end(), survey->events);
}

}  // namespace berth
