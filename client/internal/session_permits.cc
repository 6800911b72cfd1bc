#include "client/internal/session_permits.h"

#include <atomic>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/internal/channel.h"
#include "common/permit_word.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth::internal {
namespace {

absl::Status GiveBackToDaemon(SessionCore& core, uint64_t acquisition, bool if_idle) {
  BERTH_RETURN_IF_ERROR(core.Check());
  const absl::Time deadline = SteadyNow() + SessionCore::kReturnPatience;
  if (core.channel().GiveBack(AcquisitionId(acquisition), if_idle, deadline).ok()) return absl::OkStatus();
  // A call is repeated until it is answered.
  const auto make_attempt = [&](const OpenRequest& open) -> Attempt {
    v1::ReleasePermitRequest request;
    open.Fill(request.mutable_request());
    request.set_acquisition(acquisition);
    request.set_if_idle(if_idle);
    return [&core, request](grpc::ClientContext* context) {
      v1::ReleasePermitResponse response;
      return core.stubs().permit->ReleasePermit(context, request, &response);
    };
  };
  const absl::Status status = core.GiveBack(make_attempt, deadline);
  // What the daemon does not know is back already.
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

class AcquisitionReleaser final : public Holding::Releaser {
 public:
  AcquisitionReleaser(std::shared_ptr<SessionCore> core, uint64_t acquisition)
      : core_(std::move(core)), acquisition_(acquisition) {}

  absl::Status Release() override { return GiveBackToDaemon(*core_, acquisition_, /*if_idle=*/false); }

 private:
  const std::shared_ptr<SessionCore> core_;
  const uint64_t acquisition_;
};

// Keeps what it releases.
class Keeper final : public Holding::Releaser {
 public:
  Keeper(std::shared_ptr<SessionCore> core, const PermitCache::Use& use)
      : core_(std::move(core)), word_(use.word), permit_(use.permit), acquisition_(use.acquisition) {}

  absl::Status Release() override {
    // The word is the parent's.
    if (core_->forked()) return core_->Check();
    if (shared_.load(std::memory_order_acquire))
      return GiveBackToDaemon(*core_, acquisition_, /*if_idle=*/false);
    switch (word_->Put(permit_)) {
      case PermitWord::PutBack::kKept:
        return absl::OkStatus();
      case PermitWord::PutBack::kWanted:
        return GiveBackToDaemon(*core_, acquisition_, /*if_idle=*/true);
      case PermitWord::PutBack::kNotOurs:
        break;
    }
    return GiveBackToDaemon(*core_, acquisition_, /*if_idle=*/false);
  }

  // Others may nest under its key: it is no permit for the next use then.
  void Share() override { shared_.store(true, std::memory_order_release); }

 private:
  const std::shared_ptr<SessionCore> core_;
  PermitWord* const word_;
  const uint64_t permit_;
  const uint64_t acquisition_;
  std::atomic<bool> shared_ = false;
};

absl::StatusOr<PermitWord*> FindWord(SessionCore& core) {
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core.Begin());
  v1::KeepPermitsRequest request;
  open.Fill(request.mutable_request());
  const CallLimits limits = core.DefaultLimits();
  core.channel().Expect(open.sequence());
  const absl::Status status = core.Call(limits, [&](grpc::ClientContext* context) {
    v1::KeepPermitsResponse response;
    return core.stubs().permit->KeepPermits(context, request, &response);
  });
  open.Resolve(status);
  if (!status.ok()) {
    core.channel().Abandon(open.sequence());
    return status;
  }
  BERTH_ASSIGN_OR_RETURN(Arrival arrival, core.channel().Await(open.sequence(), limits.deadline));
  BERTH_RETURN_IF_ERROR(core.fences().pages.SetOwn(std::move(arrival.fd)));
  return &core.fences().pages.own()->page().permit_word();
}

}  // namespace

void OpenPermitCache(SessionCore& core) {
  PermitCache& cache = core.permit_cache();
  if (!cache.BeginOpen()) return;
  // Without a page permits are as without a cache.
  const absl::StatusOr<PermitWord*> word = FindWord(core);
  cache.Open(word.ok() ? *word : nullptr);
}

Holding* HoldKept(const std::shared_ptr<SessionCore>& core, const HoldingKey& key, PermitCache::Use use) {
  auto keeper = std::make_unique<Keeper>(core, use);
  // Of the use before.
  use.record->overdue.store(false, std::memory_order_relaxed);
  return Holding::Make(key, /*units=*/1, std::move(keeper), std::move(use.record), std::move(use.holder_key));
}

Holding* HoldGranted(const std::shared_ptr<SessionCore>& core, Granted granted) {
  const v1::AcquirePermitResponse& response = granted.response;
  std::shared_ptr<PermitRecord> record =
      core->channel().permits().Watch(response.permit(), std::move(granted.on_event));
  if (response.kept()) {
    return HoldKept(core, granted.key,
                    core->permit_cache().Keep(granted.key.pool, {.permit = response.permit(),
                                                                 .acquisition = response.acquisition(),
                                                                 .holder_key = std::move(granted.known_as),
                                                                 .record = std::move(record)}));
  }
  auto releaser = std::make_unique<AcquisitionReleaser>(core, response.acquisition());
  if (!granted.remembered) {
    return Holding::MakeForNoThread(granted.key, granted.units, std::move(releaser), std::move(record));
  }
  return Holding::Make(granted.key, granted.units, std::move(releaser), std::move(record),
                       std::move(granted.known_as));
}

std::string FreshHolderKey() {
  const uint64_t id = RandomId();
  // Short, so that a copy of it takes no memory.
  return absl::StrCat("k",
                      absl::WebSafeBase64Escape(absl::string_view(reinterpret_cast<const char*>(&id), 8)));
}

}  // namespace berth::internal
