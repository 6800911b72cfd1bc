// HistoryService: the shim of the history (daemon/broker/history_writer.h). A disk may be slow to return records: the
// service answers later, and no thread waits for the disk.

#include <memory>
#include <utility>

#include <berth/error.h>

#include "berth/v1/history.grpc.pb.h"
#include "common/mutex.h"
#include "common/terminal_text.h"
#include "daemon/broker/history_writer.h"
#include "daemon/service/conversion/history_conversion.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"

namespace berth::service {
namespace {

// A call that waits for its page, or for its cancellation. Owns itself.
class PageCall final : public grpc::ServerUnaryReactor {
 public:
  explicit PageCall(v1::ListHistoryResponse* response) : response_(*response), place_(std::make_shared<Place>(this)) {}
  PageCall(const PageCall&) = delete;
  PageCall& operator=(const PageCall&) = delete;

  // Requests the answer from the history.
  void Ask(HistoryWriter* history, HistoryQuery query) {
    history->Query(std::move(query), [place = place_, history](absl::StatusOr<HistoryWriter::Page> page) {
      place->Finish(page.status(), [&](v1::ListHistoryResponse* response) {
        ToProto(*page, response);
        response->set_unwritten_total(history->unwritten());
        response->set_fault(ToTerminal(history->fault()));
      });
    });
  }
  void OnCancel() override {
    place_->Finish(Refuse(Reason::kCancelled, "the call was cancelled"), [](v1::ListHistoryResponse*) {});
  }
  void OnDone() override { delete this; }

 private:
  // Through this the history finds the call, until the call is finished.
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
  // Shared by the history and the call: either may finish first.
  const std::shared_ptr<Place> place_;
};

class HistoryService final : public v1::HistoryService::CallbackService {
 public:
  HistoryService(ServiceContext context, HistoryWriter* history) : context_(context), history_(*history) {}

  grpc::ServerUnaryReactor* ListHistory(grpc::CallbackServerContext* context, const v1::ListHistoryRequest* request,
                                        v1::ListHistoryResponse* response) override {
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

 private:
  const ServiceContext context_;
  HistoryWriter& history_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeHistoryService(const ServiceContext& context, HistoryWriter* history) {
  return std::make_unique<HistoryService>(context, history);
}

}  // namespace berth::service
