#include "client/sdk/admin/history.h"

#include <algorithm>

#include "berth/v1/history.grpc.pb.h"
#include "client/sdk/transport/session_core.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// Maximum number of leases that the daemon sends per page.
constexpr uint64_t kMostRows = 1000;

}  // namespace

absl::StatusOr<v1::ListHistoryResponse> ListHistory(const std::shared_ptr<Session>& session,
                                                    const v1::ListHistoryRequest& filter, uint64_t most) {
  internal::SessionCore& core = *session->core();
  v1::ListHistoryRequest request = filter;
  v1::ListHistoryResponse all;
  do {
    request.set_page_size(static_cast<int32_t>(std::min(most - static_cast<uint64_t>(all.leases_size()), kMostRows)));
    v1::ListHistoryResponse page;
    BERTH_RETURN_IF_ERROR(core.Call(core.DefaultLimits(), [&](grpc::ClientContext* context) {
      page.Clear();
      return core.stubs().Of<v1::HistoryService>().ListHistory(context, request, &page);
    }));
    request.set_page_token(page.next_page_token());
    all.MergeFrom(page);
    all.set_next_page_token(request.page_token());
  } while (!request.page_token().empty() && static_cast<uint64_t>(all.leases_size()) < most);
  return all;
}

}  // namespace berth
