#include "daemon/device/worker/worker_wire.h"

#include <string.h>

#include <optional>
#include <span>
#include <string>

#include <berth/error.h>

#include "absl/strings/string_view.h"

namespace berth::worker {
namespace {

// Returns the zero-terminated text at the start of `*rest`, and moves `*rest` past it.
absl::string_view TakeText(absl::string_view* rest) {
  const absl::string_view text = rest->substr(0, rest->find('\0'));
  rest->remove_prefix(text.size() < rest->size() ? text.size() + 1 : text.size());
  return text;
}

}  // namespace

void SetStatus(const absl::Status& status, Outcome* outcome) {
  outcome->code = static_cast<int32_t>(status.code());
  status.message().copy(outcome->text, sizeof(outcome->text) - 1);
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value()) return;
  outcome->reason = static_cast<int32_t>(details->reason);
  // The last byte stays 0: it ends the list.
  std::span<char> capacity(outcome->named_values, sizeof(outcome->named_values) - 1);
  for (const auto& [name, value] : details->metadata) {
    if (name.size() + value.size() + 2 > capacity.size()) continue;
    memcpy(capacity.data(), name.c_str(), name.size() + 1);
    memcpy(capacity.data() + name.size() + 1, value.c_str(), value.size() + 1);
    capacity = capacity.subspan(name.size() + value.size() + 2);
  }
}

absl::Status GetStatus(const Outcome& outcome) {
  if (outcome.code == 0) return absl::OkStatus();
  absl::string_view text(outcome.text, sizeof(outcome.text));
  absl::Status status(static_cast<absl::StatusCode>(outcome.code), TakeText(&text));
  const std::optional<Reason> reason = ReasonFromNumber(outcome.reason);
  if (!reason.has_value()) return status;
  ErrorDetails details{.reason = *reason};
  absl::string_view rest(outcome.named_values, sizeof(outcome.named_values));
  while (true) {
    const absl::string_view name = TakeText(&rest);
    if (name.empty()) break;
    details.metadata[std::string(name)] = std::string(TakeText(&rest));
  }
  SetErrorDetails(details, &status);
  return status;
}

}  // namespace berth::worker
