#include <berth/session.h>

#include <utility>

#include "client/sdk/transport/session_core.h"
#include "common/status_macros.h"

namespace berth {

Session::Session(std::shared_ptr<internal::SessionCore> core) : core_(std::move(core)) {}

Session::~Session() = default;

absl::StatusOr<std::shared_ptr<Session>> Session::Open(const SessionOptions& options) {
  BERTH_ASSIGN_OR_RETURN(std::shared_ptr<internal::SessionCore> core, internal::SessionCore::Open(options));
  return std::shared_ptr<Session>(new Session(std::move(core)));
}

SessionId Session::id() const { return core_->id(); }

const std::string& Session::folder() const { return core_->folder(); }

bool Session::joined() const { return core_->joined(); }

absl::StatusOr<std::string> Session::Inherit() { return core_->Inherit(); }

absl::Status Session::End(absl::Duration max_wait) { return core_->End(max_wait); }

absl::Status Session::status() const { return core_->Check(); }

}  // namespace berth
