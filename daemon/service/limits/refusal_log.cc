#include "daemon/service/limits/refusal_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/broker/event_loop.h"
#include "spdlog/spdlog.h"

namespace berth::service {

void RefusalLog::Warn(absl::string_view what) {
  if (const std::optional<std::string> line = LineFor(EventLoop::SteadyNow(), what))
    spdlog::warn("{}", *line);
}

std::optional<std::string> RefusalLog::LineFor(absl::Time now, absl::string_view what) {
  MutexLock lock(&mu_);
  if (now - second_ >= absl::Seconds(1)) {
    second_ = now;
    lines_ = 0;
  }
  if (lines_ == kLinesPerSecond) {
    ++left_out_;
    return std::nullopt;
  }
  ++lines_;
  const uint64_t left_out = std::exchange(left_out_, 0);
  if (left_out == 0) return std::string(what);
  return absl::StrCat(what, " (", left_out, " earlier refusals not logged)");
}

}  // namespace berth::service
