// Clients' requests: the bytes of each kind of message, and their conversion by the daemon.

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/fence.pb.h"
#include "berth/v1/history.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/module.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/plan.pb.h"
#include "daemon/core/types/caller.h"
#include "daemon/service/conversion/history_conversion.h"
#include "daemon/service/conversion/page.h"
#include "daemon/service/conversion/permit_conversion.h"
#include "daemon/service/rpc/fence_requests.h"
#include "daemon/service/rpc/memory_requests.h"
#include "daemon/service/rpc/module_requests.h"
#include "daemon/service/rpc/permit_requests.h"
#include "daemon/service/rpc/plan_requests.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1'000);
constexpr uint64_t kScope = 7;

template <typename Message>
void Convert(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  if constexpr (requires { service::FromProto(message, core::Caller()); }) {
    service::FromProto(message, core::Caller()).status().IgnoreError();
  } else {
    service::FromProto(message).status().IgnoreError();
  }
}

// Converts the message of a kind of request.
template <typename Request, typename Message>
void Decode(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  service::RpcTraits<Request>::Decode(message, kNow).status().IgnoreError();
}

// Reads the page tokens of each list, and those of lists within a scope.
void ReadTokens(const std::string& bytes) {
  service::ReadPage(0, bytes).status().IgnoreError();
  service::ReadPage(0, bytes, kScope).status().IgnoreError();
}

constexpr void (*kConvert[])(const std::string&) = {
    Decode<core::AcquireRequest, v1::AcquirePermitRequest>,
    Decode<core::GangRequest, v1::AcquireGangRequest>,
    Convert<v1::SetPoolRequest>,
    Decode<core::AllocateRequest, v1::AllocateBlockRequest>,
    Decode<core::PublishRequest, v1::PublishBlockRequest>,
    Decode<core::UnpublishRequest, v1::UnpublishBlockRequest>,
    Decode<core::ReserveRequest, v1::ReserveBytesRequest>,
    Decode<core::SetBudgetRequest, v1::SetBudgetRequest>,
    Decode<core::FreeRequest, v1::FreeBlockRequest>,
    Decode<core::GrantRequest, v1::GrantBlockRequest>,
    Decode<core::ImportRequest, v1::ImportBlockRequest>,
    Decode<core::PrepareUseRequest, v1::PrepareUseRequest>,
    Decode<core::ObtainModuleRequest, v1::ObtainModuleRequest>,
    Decode<core::StoreModuleRequest, v1::StoreModuleRequest>,
    Decode<core::AbandonModuleRequest, v1::AbandonModuleRequest>,
    Decode<core::PlanRequest, v1::MakePlanRequest>,
    Convert<v1::ListHistoryRequest>,
    ReadTokens,
};

std::string AsSeed(size_t kind, const google::protobuf::Message& message) {
  return static_cast<char>(kind) + message.SerializeAsString();
}

}  // namespace

std::vector<std::string> Seeds() {
  v1::AcquirePermitRequest acquire;
  acquire.set_pool("gpu-tests");
  acquire.set_units(1);
  acquire.set_holder_key("thread 1");
  acquire.set_label("a test");
  acquire.mutable_max_wait()->set_seconds(3);
  v1::AllocateBlockRequest allocate;
  allocate.set_bytes(4096);
  allocate.set_label("weights");
  v1::ReserveBytesRequest reserve;
  reserve.add_items()->set_bytes(4096);
  v1::MakePlanRequest plan;
  plan.set_units(100);
  v1::ListHistoryRequest history;
  history.set_page_size(10);
  history.set_page_token(service::PageToken(99));
  history.set_kind(v1::HistoryLease::PERMIT);
  history.set_pool("gpu-tests");
  history.mutable_since()->set_seconds(1'700'000'000);
  history.mutable_until()->set_nanos(1);
  std::vector<std::string> seeds = {AsSeed(0, acquire), AsSeed(3, allocate), AsSeed(6, reserve),
                                    AsSeed(15, plan),   AsSeed(16, history), "\x11" + service::PageToken(99),
                                    "\x11" + service::PageToken(99, kScope)};
  // An empty message is valid, too.
  for (size_t kind = 0; kind < std::size(kConvert); ++kind) seeds.emplace_back(1, static_cast<char>(kind));
  return seeds;
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  berth::fuzz::kConvert[data[0] % std::size(berth::fuzz::kConvert)](
      std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
