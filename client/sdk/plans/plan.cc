#include <berth/plan.h>

#include <algorithm>
#include <utility>

#include <berth/error.h>

#include "berth/v1/plan.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "client/sdk/devices/device_constraint.h"
#include "client/sdk/plans/plan_watch.h"
#include "client/sdk/transport/call_limits.h"
#include "client/sdk/transport/duration.h"
#include "client/sdk/transport/live_object_counts.h"
#include "client/sdk/transport/session_core.h"
#include "common/concurrency_limit.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "google/protobuf/arena.h"

namespace berth {
namespace {

using internal::Attempt;
using internal::CallLimits;
using internal::OpenRequest;
using internal::SessionCore;

absl::StatusOr<v1::MakePlanRequest> MakeRequest(const PlanOptions& options) {
  v1::MakePlanRequest request;
  request.set_units(options.units);
  request.set_label(ToLabel(options.label));
  for (const std::string& device : options.devices) {
    BERTH_RETURN_IF_ERROR(ValidateLabel("devices", device));
    request.add_devices(device);
  }
  request.set_weight_source(static_cast<v1::MakePlanRequest::WeightSource>(options.weigh_by));
  for (const double weight : options.weights) request.add_weights(weight);
  request.set_bytes_per_unit(options.bytes_per_unit.count());
  request.set_min_units(options.min_units);
  request.set_max_devices(options.max_devices);
  request.set_one_island(options.one_island);
  request.set_reserve(options.reserve);
  internal::FillVisible(internal::DevicesOfProcess(), &request);
  if (!options.permits.has_value()) return request;
  const PlanPermits& permits = *options.permits;
  BERTH_RETURN_IF_ERROR(internal::CheckNotNegative("max_wait", permits.max_wait));
  BERTH_RETURN_IF_ERROR(ValidateLabel("pool", permits.pool));
  v1::MakePlanRequest::Permits* const to = request.mutable_permits();
  to->set_pool(permits.pool.empty() ? std::string(kDefaultPool) : permits.pool);
  to->set_units(permits.units);
  if (to->pool() == kDefaultPool) to->set_client_cap(ConcurrencyFromEnvironment().value_or(0));
  if (permits.max_wait != absl::InfiniteDuration())
    internal::ToProto(permits.max_wait, to->mutable_max_wait());
  to->set_independent(permits.independent);
  to->set_priority(permits.priority);
  return request;
}

// Text for the values of Plan.Stale.
absl::string_view StaleText(uint64_t why) {
  switch (why) {
    case v1::Plan::DEVICE_DROPPED:
      return "device state dropped";
    case v1::Plan::DEVICE_STOPPED:
      return "device out of service";
    case v1::Plan::DEVICE_DRAINING:
      return "device draining";
    case v1::Plan::MEMORY_LOST:
      return "device memory lost";
    case v1::Plan::PERMIT_REVOKED:
      return "permit revoked";
    default:
      return "changed";
  }
}

absl::Status Stale(PlanId plan, uint64_t device, absl::string_view why) {
  return Refuse(Reason::kStale, "plan {plan} is stale: device {device}: {why}",
                {{"plan", plan.value()}, {"device", device}, {"why", why}});
}

// The daemon may have split the plan differently than this process knows: no tile is certain.
absl::Status Unknown(PlanId plan) {
  return Refuse(Reason::kStale, "plan {plan} is stale: {why}",
                {{"plan", plan.value()}, {"why", "the outcome of its re-plan is unknown"}});
}

// A refusal has changed nothing; after another error a request may have been carried out.
bool IsDoubtful(const absl::Status& status) {
  return !status.ok() && (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                          absl::IsCancelled(status) || !GetErrorDetails(status).has_value());
}

BlockKind KindOf(v1::MemoryKind kind) {
  return kind == v1::MEMORY_KIND_CUDA_VMM      ? BlockKind::kCudaVmm
         : kind == v1::MEMORY_KIND_CUDA_DIRECT ? BlockKind::kCudaDirect
                                               : BlockKind::kHost;
}

// Returns the units that changed device, or whose device lost its memory. Requires: both plans have the same units.
std::vector<PlanMove> Difference(const std::vector<PlanTile>& before, const std::vector<PlanTile>& after) {
  std::vector<PlanMove> moves;
  auto was = before.begin();
  for (const PlanTile& is : after) {
    for (uint64_t at = is.begin; at < is.end;) {
      while (was->end <= at) ++was;
      const uint64_t end = std::min(was->end, is.end);
      if (was->device_uuid != is.device_uuid || was->generation != is.generation) {
        moves.push_back({.from_uuid = was->device_uuid,
                         .from_generation = was->generation,
                         .to_uuid = is.device_uuid,
                         .begin = at,
                         .end = end});
      }
      at = end;
    }
  }
  return moves;
}

}  // namespace

absl::StatusOr<Plan> Plan::Make(const std::shared_ptr<Session>& session, const PlanOptions& options) {
  const std::shared_ptr<SessionCore>& core = session->core();
  BERTH_ASSIGN_OR_RETURN(v1::MakePlanRequest request, MakeRequest(options));
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core->Begin());
  CallLimits limits =
      options.permits.has_value() ? CallLimits::Waiting(options.permits->max_wait) : core->DefaultLimits();
  limits.cancellation = options.cancellation;
  core->FillToTakeUp(open, request.mutable_request(), &limits);
  // The arena allocates the response's many parts together and frees them together.
  google::protobuf::Arena arena;
  v1::PlanChange& response = *google::protobuf::Arena::CreateMessage<v1::PlanChange>(&arena);
  const absl::Status status = core->Call(limits, [&](grpc::ClientContext* context) {
    return core->stubs().Of<v1::PlanService>().MakePlan(context, request, &response);
  });
  open.Resolve(status);
  BERTH_RETURN_IF_ERROR(status);
  Plan plan;
  plan.core_ = core;
  plan.Adopt(response.plan());
  plan.record_ = core->channel().plans().Watch(response.plan().id(), options.on_stale);
  internal::live_object_counts.plans.fetch_add(1, std::memory_order_relaxed);
  return plan;
}

void Plan::Adopt(const v1::Plan& plan) {
  id_ = PlanId(plan.id());
  revision_ = plan.revision();
  units_ = plan.units();
  pool_ = plan.pool();
  permit_units_ = plan.permit_units();
  reservation_ = ReservationId(plan.reservation());
  doubtful_ = 0;
  tiles_.clear();
  tiles_.reserve(static_cast<size_t>(plan.tiles_size()));
  for (const v1::Plan::Tile& tile : plan.tiles()) {
    const v1::PlanDevice& device = plan.devices(tile.device());
    tiles_.push_back({.device_uuid = device.uuid(),
                      .device = device.ordinal(),
                      .generation = device.generation(),
                      .kind = KindOf(device.kind()),
                      .begin = tile.begin(),
                      .end = tile.end(),
                      .holder_key = device.holder_key()});
  }
}

Plan::Plan(Plan&& other) noexcept = default;

Plan& Plan::operator=(Plan&& other) noexcept {
  if (this == &other) return *this;
  Release().IgnoreError();
  core_ = std::move(other.core_);
  record_ = std::move(other.record_);
  id_ = other.id_;
  revision_ = other.revision_;
  units_ = other.units_;
  tiles_ = std::move(other.tiles_);
  pool_ = std::move(other.pool_);
  permit_units_ = other.permit_units_;
  reservation_ = other.reservation_;
  doubtful_ = other.doubtful_;
  return *this;
}

Plan::~Plan() { Release().IgnoreError(); }

absl::Status Plan::CheckSession() const {
  if (core_ == nullptr) return absl::FailedPreconditionError("the plan was released by this process");
  if (core_->over()) return core_->Check();
  if (!record_->ended.load(std::memory_order_acquire)) return absl::OkStatus();
  return Refuse(Reason::kStale, "plan {plan} is stale: {why}",
                {{"plan", id_.value()}, {"why", Describe(record_->end)}});
}

absl::Status Plan::CheckTile(const PlanTile& tile) const {
  BERTH_RETURN_IF_ERROR(CheckSession());
  if (doubtful_ != 0) return Unknown(id_);
  const DeviceEntry& entry = core_->page().devices[tile.device];
  if (entry.dropped.load(std::memory_order_acquire) != 0) {
    return Stale(id_, tile.device, StaleText(v1::Plan::DEVICE_DROPPED));
  }
  if (entry.generation.load(std::memory_order_acquire) != tile.generation) {
    return Stale(id_, tile.device, StaleText(v1::Plan::MEMORY_LOST));
  }
  const uint64_t reported = record_->stale_revision.load(std::memory_order_acquire);
  if (reported < revision_) return absl::OkStatus();
  // A report about a later revision does not concern these tiles.
  if (reported > revision_) return Unknown(id_);
  const uint64_t device = record_->device.load(std::memory_order_relaxed);
  if (device != tile.device) return absl::OkStatus();
  return Stale(id_, device, StaleText(record_->why.load(std::memory_order_relaxed)));
}

absl::Status Plan::Check(const std::vector<PlanTile>& tiles) const {
  BERTH_RETURN_IF_ERROR(CheckSession());
  if (doubtful_ != 0) return Unknown(id_);
  for (const PlanTile& tile : tiles) BERTH_RETURN_IF_ERROR(CheckTile(tile));
  if (record_->stale_revision.load(std::memory_order_acquire) < revision_) return absl::OkStatus();
  return Stale(id_, record_->device.load(std::memory_order_relaxed),
               StaleText(record_->why.load(std::memory_order_relaxed)));
}

absl::Status Plan::ForgetDoubtful() const {
  v1::ForgetRequestRequest request;
  request.set_sequence(doubtful_);
  return core_->Call(core_->DefaultLimits(), [&](grpc::ClientContext* context) {
    v1::ForgetRequestResponse response;
    return core_->stubs().Of<v1::SessionService>().ForgetRequest(context, request, &response);
  });
}

absl::StatusOr<std::vector<PlanMove>> Plan::Replan(const ReplanOptions& options) {
  BERTH_RETURN_IF_ERROR(CheckSession());
  if (doubtful_ != 0) BERTH_RETURN_IF_ERROR(ForgetDoubtful());
  v1::ReplanRequest request;
  request.set_plan(id_.value());
  request.set_reweigh(options.reweigh);
  BERTH_ASSIGN_OR_RETURN(OpenRequest open, core_->Begin());
  const uint64_t sequence = open.sequence();
  open.Fill(request.mutable_request());
  v1::PlanChange response;
  const absl::Status status = core_->Call(core_->DefaultLimits(), [&](grpc::ClientContext* context) {
    return core_->stubs().Of<v1::PlanService>().Replan(context, request, &response);
  });
  open.Resolve(status);
  if (IsDoubtful(status)) doubtful_ = sequence;
  BERTH_RETURN_IF_ERROR(status);
  const std::vector<PlanTile> before = std::move(tiles_);
  Adopt(response.plan());
  return Difference(before, tiles_);
}

absl::StatusOr<Block> Plan::Allocate(const PlanTile& tile, BlockOptions options) const {
  BERTH_RETURN_IF_ERROR(CheckSession());
  if (!reservation_) return absl::FailedPreconditionError("the plan has no reservation of bytes");
  options.device_uuid = tile.device_uuid;
  return Block::Allocate(core_, options, reservation_);
}

absl::Status Plan::Release() {
  const std::shared_ptr<SessionCore> core = std::move(core_);
  if (core == nullptr) return absl::OkStatus();
  record_.reset();
  internal::live_object_counts.plans.fetch_sub(1, std::memory_order_relaxed);
  const absl::Status status = core->GiveBack([&](const OpenRequest& open) -> Attempt {
    v1::ReleasePlanRequest request;
    open.Fill(request.mutable_request());
    request.set_plan(id_.value());
    return [raw = core.get(), request](grpc::ClientContext* context) {
      v1::ReleasePlanResponse response;
      return raw->stubs().Of<v1::PlanService>().ReleasePlan(context, request, &response);
    };
  });
  // The daemon no longer knows the plan: it is already released.
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

}  // namespace berth
