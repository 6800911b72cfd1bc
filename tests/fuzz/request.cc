// What clients ask: the bytes of each kind of message, and what the daemon makes of it.

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "berth/v1/fence.pb.h"
#include "berth/v1/history.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/module.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/plan.pb.h"
#include "daemon/core/caller.h"
#include "daemon/service/conversion.h"
#include "daemon/service/fence_conversion.h"
#include "daemon/service/history_conversion.h"
#include "daemon/service/memory_conversion.h"
#include "daemon/service/module_conversion.h"
#include "daemon/service/page.h"
#include "daemon/service/permit_conversion.h"
#include "daemon/service/plan_conversion.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1'000);
constexpr uint64_t kScope = 7;

template <typename Message>
void Convert(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  if constexpr (requires { service::FromProto(message, kNow); }) {
    service::FromProto(message, kNow).status().IgnoreError();
  } else if constexpr (requires { service::FromProto(message, core::Caller()); }) {
    service::FromProto(message, core::Caller()).status().IgnoreError();
  } else {
    service::FromProto(message).status().IgnoreError();
  }
}

// Each list's, and those of lists within a scope.
void ReadTokens(const std::string& bytes) {
  service::ReadPage(0, bytes).status().IgnoreError();
  service::ReadPage(0, bytes, kScope).status().IgnoreError();
}

constexpr void (*kConvert[])(const std::string&) = {
    Convert<v1::AcquirePermitRequest>, Convert<v1::AcquireGangRequest>,    Convert<v1::SetPoolRequest>,
    Convert<v1::AllocateBlockRequest>, Convert<v1::PublishBlockRequest>,   Convert<v1::UnpublishBlockRequest>,
    Convert<v1::ReserveBytesRequest>,  Convert<v1::SetBudgetRequest>,      Convert<v1::FreeBlockRequest>,
    Convert<v1::GrantBlockRequest>,    Convert<v1::ImportBlockRequest>,    Convert<v1::PrepareUseRequest>,
    Convert<v1::ObtainModuleRequest>,  Convert<v1::StoreModuleRequest>,    Convert<v1::AbandonModuleRequest>,
    Convert<v1::MakePlanRequest>,      Convert<v1::ListHistoryRequest>,    ReadTokens,
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
  // What is empty is one, too.
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
