#include "daemon/service/history_service.h"

#include <memory>
#include <utility>

#include "common/error.h"
#include "common/mutex.h"
#include "daemon/service/history_conversion.h"
#include "daemon/service/unary_call.h"

namespace berth::service {
namespace {

// A call that waits for its page, or for its caller to go. Owns itself.
class PageCall final : public grpc::ServerUnaryReactor {
 public:
  explicit PageCall(v1::ListHistoryResponse* response) : response_(*response), place_(std::make_shared<Place>(this)) {}
  PageCall(const PageCall&) = delete;
  PageCall& operator=(const PageCall&) = delete;

  // Has it answered by the history.
  void Ask(HistoryKeeper* history, HistoryQuery query) {
    history->Query(std::move(query), [place = place_, history](absl::StatusOr<HistoryKeeper::Page> page) {
      place->Finish(page.status(), [&](v1::ListHistoryResponse* response) {
        ToProto(*page, response);
        response->set_unwritten_total(history->unwritten());
        response->set_fault(history->fault());
      });
    });
  }
  void OnCancel() override {
    place_->Finish(Refuse(Reason::kCancelled, "the call was cancelled"), [](v1::ListHistoryResponse*) {});
  }
  void OnDone() override { delete this; }

 private:
  // Where the history finds the call, as long as nobody has finished it.
  class Place {
   public:
    explicit Place(PageCall* call) : call_(call) {}
    template <typename Fill>
    void Finish(const absl::Status& status, Fill fill) ABSL_LOCKS_EXCLUDED(mu_) {
      MutexLock lock(&mu_);
      PageCall* const call = std::exchange(call_, nullptr);
      if (call == nullptr) return;
      if (status.ok()) fill(&call->response_);
      call->grpc::ServerUnaryReactor::Finish(ToGrpc(status));
    }

   private:
    Mutex mu_;
    PageCall* call_ ABSL_GUARDED_BY(mu_);
  };

  v1::ListHistoryResponse& response_;
  // Both the history and the call have it, whichever is done first.
  const std::shared_ptr<Place> place_;
};

}  // namespace

grpc::ServerUnaryReactor* HistoryService::ListHistory(grpc::CallbackServerContext* context,
                                                      const v1::ListHistoryRequest* request,
                                                      v1::ListHistoryResponse* response) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  if (!caller.ok()) return FinishRefused(context_, context, kAnyCall, caller, caller.status());
  const absl::Status known =
      context_.broker->Read([&](const core::Core& core) { return core.Authenticate(*caller); });
  if (!known.ok()) return FinishRefused(context_, context, kAnyCall, caller, known);
  absl::StatusOr<HistoryQuery> query = FromProto(*request, *caller);
  if (!query.ok()) return FinishNow(context, query.status());
  auto* const call = new PageCall(response);
  call->Ask(&history_, *std::move(query));
  return call;
}

}  // namespace berth::service
