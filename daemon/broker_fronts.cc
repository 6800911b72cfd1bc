// The broker's part that clients meet: gRPC's services, the sockets, and what bounds them and the broker's memory.

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/memfd.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "daemon/broker_process.h"
#include "daemon/service/history_service.h"
#include "daemon/service/inventory_service.h"
#include "daemon/service/module_service.h"
#include "daemon/service/plan_service.h"
#include "daemon/service/services.h"
#include "daemon/vault/fd_reserve.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

// The audit log gets this long for the last words of a broker that ends itself.
constexpr absl::Duration kLastWords = absl::Milliseconds(100);

}  // namespace

absl::Status BrokerProcess::StartFronts(const std::string& folder, const Settings& settings) {
  BERTH_ASSIGN_OR_RETURN(StatePage writable, StatePage::MapWritable(page_fd_.get()));
  page_.emplace(std::move(writable));
  connections_ = std::make_unique<service::ConnectionTable>(MakeConnectionLimits(settings));
  connections_->SetQuotas(settings.quotas);
  guard_ = std::make_unique<service::FrontGuard>(connections_.get(), audit_.get(), MakeAcceptRates(settings));
  callers_ = std::make_unique<service::CallerSource>(connections_.get());

  v1::Node node;
  node.set_id(facts_.node);
  node.set_incarnation(facts_.incarnation);
  node.set_epoch(facts_.epoch);
  node.set_version(kVersion);
  const std::vector<core::DeviceView> devices = core_->ListDevices();
  if (!devices.empty()) node.set_kind(static_cast<v1::MemoryKind>(devices.front().kind));

  watches_ =
      std::make_unique<service::DeviceWatches>(broker_.get(), desk_.get(), facts_.incarnation ^ facts_.epoch);
  watches_->SetQuotas(settings.quotas);
  const service::ServiceContext context = {broker_.get(), callers_.get(), audit_.get()};
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<service::SessionService>(context));
  services.push_back(std::make_unique<service::PermitService>(context));
  services.push_back(std::make_unique<service::MemoryService>(context, log_.get()));
  services.push_back(std::make_unique<service::FenceService>(context));
  services.push_back(std::make_unique<service::PlanService>(context));
  services.push_back(std::make_unique<service::ModuleService>(context));
  services.push_back(std::make_unique<service::DeviceService>(context, watches_.get()));
  services.push_back(std::make_unique<service::InventoryService>(context, desk_.get()));
  services.push_back(std::make_unique<service::AdminService>(context, config_.get(), [this] { Reset(); }, [this] {
    custody_->Order(/*device=*/0, Lane::kMain, custody::OrderKind::kUpgrade, "");
  }));
  services.push_back(std::make_unique<service::HistoryService>(context, history_.get()));
  services.push_back(std::make_unique<service::NodeService>(
      std::move(node), broker_.get(), log_.get(), audit_.get(), &**page_,
      [this](v1::Pressure* pressure) { ReadPressure(pressure); }));
  BERTH_ASSIGN_OR_RETURN(grpc_, service::GrpcFront::Start(std::move(services)));
  poller_ = std::make_unique<service::SinglePoller>();
  grpc_->SetServing(ledger_fault_.ok());

  const auto hand_over = [this](int fd) {
    guard_->Watch(fd);
    grpc_->AddConnection(fd);
  };
  acceptor_ =
      std::make_unique<service::Acceptor>(loop_.get(), guard_->accept_gate(), connections_.get(), hand_over);
  acceptor_->KeepAudit(audit_.get());
  BERTH_ASSIGN_OR_RETURN(UniqueFd page, ReopenReadOnly(page_fd_.get()));
  service::AttachLimits attach_limits;
  // The other half is for everybody else, and for gRPC.
  attach_limits.fds_per_uid =
      std::max(1, std::min<int>(settings.attach_fds_per_uid.value_or(attach_limits.fds_per_uid),
                                ClientFdLimit() / 2));
  attach_limits.accepts = MakeAcceptRates(settings);
  attach_ = std::make_unique<service::AttachFront>(
      loop_.get(), broker_.get(), custody_.get(),
      service::NodeFacts{.node = facts_.node, .incarnation = facts_.incarnation, .folder = folder},
      std::move(page), attach_limits);
  attach_->KeepHearing(&page_->writable().hearing);
  attach_->KeepAudit(audit_.get());
  attach_->RecognizeOperatorsBy(admin_attach_listener_.get());
  return absl::OkStatus();
}

absl::Status BrokerProcess::Listen() {
  BERTH_RETURN_IF_ERROR(attach_->Listen(std::move(attach_listener_), /*of_operators=*/false));
  BERTH_RETURN_IF_ERROR(attach_->Listen(std::move(admin_attach_listener_), /*of_operators=*/true));
  using Role = service::Peer::Role;
  BERTH_RETURN_IF_ERROR(acceptor_->Listen(std::move(berthd_listener_), Role::kTenant));
  BERTH_RETURN_IF_ERROR(acceptor_->Listen(std::move(observer_listener_), Role::kObserver));
  return acceptor_->Listen(std::move(admin_listener_), Role::kAdmin);
}

absl::Status BrokerProcess::WatchMemory(const Settings& settings) {
  const Bytes bound = settings.broker_memory.value_or(kBrokerMemory);
  BERTH_ASSIGN_OR_RETURN(const Bytes now_has, ReadOwnMemory());
  // A later one has what its clients have on its books.
  if (facts_.begun == 0) BERTH_RETURN_IF_ERROR(MemoryBound::Check(bound, now_has));
  memory_ = std::make_unique<MemoryWatch>(MemoryBound(bound, now_has, SteadyNow()),
                                          [this](Bytes has) { EndForMemory(has); });
  return custody_->Bound(memory_->bound().count());
}

void BrokerProcess::EndForMemory(Bytes has) {
  ++page_->writable().memory_restarts;
  const std::string bound = FormatBytes(memory_->bound());
  spdlog::critical("the broker ends, and another one goes on: it has {} of memory, bound {} (limits.broker_memory)",
                   FormatBytes(has), bound);
  Audit("end_broker", {{"memory", FormatBytes(has)}, {"limit", bound}});
  audit_->Flush(kLastWords);
  ::_exit(1);
}

void BrokerProcess::ReadPressure(v1::Pressure* pressure) const {
  pressure->set_memory_bytes(memory_->has().count());
  pressure->set_memory_bound_bytes(memory_->bound().count());
  pressure->set_memory_restarts((*page_)->memory_restarts);
  pressure->set_ended_connections(guard_->ended_total());
  pressure->set_refused_connections(guard_->refused_total() + attach_->refused_total());
}

}  // namespace berth
