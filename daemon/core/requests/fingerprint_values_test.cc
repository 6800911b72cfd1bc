// The fingerprints of every kind of request equal those of the first version. Ledgers contain fingerprints: a daemon
// that computes another value refuses the retries of requests from before its upgrade.

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/base/casts.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/digest.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/types/response.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

// ---- The first version, field by field. Do not change it, except to drop a kind. --------------------------------

// FNV-1a, as it is defined.
class Reference {
 public:
  Reference& Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) AddByte(static_cast<uint8_t>(value >> (8 * i)));
    return *this;
  }
  Reference& Add(absl::string_view text) {
    Add(static_cast<uint64_t>(text.size()));
    for (const char c : text) AddByte(static_cast<uint8_t>(c));
    return *this;
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3; }

  uint64_t value_ = 0xcbf29ce484222325;
};

enum class Kind : uint64_t {
  kAcquire = 1,
  kRelease,
  kAllocate,
  kFree,
  kGrant,
  kImport,
  kOpenStream,
  kCloseStream,
  kPrepareUse,
  kFinishUse,
  kAbandonUse,
  kReserve,
  kReleaseReservation,
  kPublish,
  kUnpublish,
  kAcquireGang,
  kKeepPermits,
  kReleaseIfIdle,
  kMakePlan,
  kReplan,
  kReleasePlan,
  kObtainModule,
  kStoreModule,
  kAbandonModule
};

Reference Begin(Kind kind) { return Reference().Add(static_cast<uint64_t>(kind)); }

void AddHandle(const BlockHandle& handle, Reference* fingerprint) {
  fingerprint->Add(handle.node)
      .Add(handle.incarnation)
      .Add(handle.device_uuid)
      .Add(handle.block.value())
      .Add(handle.generation)
      .Add(handle.block_generation);
}

void AddBounds(const std::vector<std::string>& among, const std::optional<std::string>& visible,
               Reference* fingerprint) {
  if (!among.empty()) fingerprint->Add("among").Add(uint64_t{among.size()});
  for (const std::string& name : among) fingerprint->Add(name);
  if (visible.has_value()) fingerprint->Add("visible").Add(*visible);
}

void AddConstraint(const DeviceConstraint& constraint, Reference* fingerprint) {
  fingerprint->Add(static_cast<uint64_t>(constraint.pick))
      .Add(constraint.uuid)
      .Add(constraint.min_free.count())
      .Add(constraint.declared.count())
      .Add(uint64_t{constraint.min_capability})
      .Add(constraint.island_of);
  // Without these options the fingerprint equals that of earlier versions, so a retry is recognised across an upgrade.
  if (constraint.wait_for_device) fingerprint->Add("wait for device");
  AddBounds(constraint.among, constraint.visible, fingerprint);
}

void AddItems(const std::vector<ReserveItem>& items, Reference* fingerprint) {
  for (const ReserveItem& item : items) {
    fingerprint->Add(uint64_t{item.device}).Add(item.device_uuid).Add(item.bytes.count());
  }
}

uint64_t BitsOf(const ExportKinds& kinds) { return (kinds.fd ? 1 : 0) | (kinds.cuda_ipc ? 2 : 0); }

uint64_t ReferenceOf(const GangRequest& request) {
  Reference fingerprint = Begin(Kind::kAcquireGang).Add(uint64_t{request.members.size()});
  for (const GangMember& member : request.members) {
    fingerprint.Add(member.pool).Add(member.units).Add(member.client_cap);
    AddConstraint(member.device, &fingerprint);
  }
  AddItems(request.reserve, &fingerprint);
  return fingerprint.Add(static_cast<uint64_t>(absl::ToInt64Nanoseconds(request.reserve_for)))
      .Add(request.holder_key)
      .Add(request.label)
      .Add(uint64_t{request.wait})
      .Add(uint64_t{request.adoptable})
      .Add(uint64_t{request.independent})
      .Add(static_cast<uint64_t>(int64_t{request.priority}))
      .Add(uint64_t{request.exclusive})
      .value();
}

uint64_t ReferenceOf(const AcquireRequest& request) {
  Reference fingerprint = Begin(Kind::kAcquire);
  fingerprint.Add(request.pool)
      .Add(request.units)
      .Add(request.holder_key)
      .Add(request.label)
      .Add(uint64_t{request.wait})
      .Add(request.client_cap)
      .Add(uint64_t{request.adoptable})
      .Add(uint64_t{request.independent})
      .Add(static_cast<uint64_t>(int64_t{request.priority}))
      .Add(uint64_t{request.exclusive})
      .Add(uint64_t{request.keep});
  AddConstraint(request.device, &fingerprint);
  return fingerprint.value();
}

uint64_t ReferenceOf(AcquisitionId released) { return Begin(Kind::kRelease).Add(released.value()).value(); }

uint64_t ReferenceOf(const AllocateRequest& request) {
  Reference fingerprint = Begin(Kind::kAllocate);
  fingerprint.Add(uint64_t{request.device})
      .Add(request.device_uuid)
      .Add(request.bytes.count())
      .Add(request.label)
      .Add(request.reservation.value())
      .Add(uint64_t{request.wait})
      .Add(BitsOf(request.kinds));
  AddConstraint(request.constraint, &fingerprint);
  return fingerprint.value();
}

uint64_t ReferenceOf(const ReserveRequest& request) {
  Reference fingerprint = Begin(Kind::kReserve);
  AddItems(request.items, &fingerprint);
  return fingerprint.Add(request.label)
      .Add(static_cast<uint64_t>(absl::ToInt64Nanoseconds(request.ttl)))
      .value();
}

uint64_t ReferenceOf(ReservationId released) {
  return Begin(Kind::kReleaseReservation).Add(released.value()).value();
}

uint64_t ReferenceOf(const FreeRequest& request) {
  Reference fingerprint = Begin(Kind::kFree);
  AddHandle(request.handle, &fingerprint);
  for (const ImportId import : request.let_go) fingerprint.Add(import.value());
  return fingerprint.value();
}

uint64_t ReferenceOf(const GrantRequest& request) {
  Reference fingerprint = Begin(Kind::kGrant);
  AddHandle(request.handle, &fingerprint);
  fingerprint.Add(uint64_t{request.grantee.index()});
  if (const auto* session = std::get_if<SessionId>(&request.grantee)) {
    fingerprint.Add(session->value());
  } else {
    const Tenant& tenant = std::get<Tenant>(request.grantee);
    fingerprint.Add(uint64_t{tenant.uid}).Add(tenant.container);
  }
  return fingerprint.value();
}

uint64_t ReferenceOf(const ImportRequest& request) {
  Reference fingerprint = Begin(Kind::kImport);
  AddHandle(request.handle, &fingerprint);
  fingerprint.Add(uint64_t{request.read_only}).Add(request.name).Add(BitsOf(request.kinds));
  if (request.publisher.has_value()) {
    fingerprint.Add(uint64_t{request.publisher->uid}).Add(request.publisher->container);
  }
  return fingerprint.value();
}

uint64_t ReferenceOf(const PublishRequest& request) {
  Reference fingerprint = Begin(Kind::kPublish);
  AddHandle(request.handle, &fingerprint);
  fingerprint.Add(request.name);
  for (const ImportId import : request.let_go) fingerprint.Add(import.value());
  if (request.replace) fingerprint.Add("replace");
  return fingerprint.value();
}

uint64_t ReferenceOf(const UnpublishRequest& request) {
  const Tenant tenant = request.tenant.value_or(Tenant());
  return Begin(Kind::kUnpublish)
      .Add(request.name)
      .Add(uint64_t{request.tenant.has_value()})
      .Add(uint64_t{tenant.uid})
      .Add(tenant.container)
      .value();
}

uint64_t ReferenceOf(const KeepPermitsRequest&) { return Begin(Kind::kKeepPermits).value(); }

uint64_t ReferenceOf(const ReleaseIfIdleRequest& request) {
  return Begin(Kind::kReleaseIfIdle).Add(request.acquisition.value()).value();
}

uint64_t ReferenceOf(const OpenStreamRequest& request) {
  return Begin(Kind::kOpenStream).Add(uint64_t{request.device}).Add(uint64_t{request.default_stream}).value();
}

uint64_t ReferenceOf(const CloseStreamRequest& request) {
  return Begin(Kind::kCloseStream).Add(uint64_t{request.slot}).value();
}

uint64_t ReferenceOf(const PrepareUseRequest& request) {
  Reference fingerprint = Begin(Kind::kPrepareUse).Add(uint64_t{request.slot});
  for (const BlockUse& use : request.uses) {
    fingerprint.Add(use.block.value()).Add(static_cast<uint64_t>(use.access));
  }
  return fingerprint.value();
}

uint64_t ReferenceOf(const FinishUseRequest& request) {
  return Begin(Kind::kFinishUse).Add(request.use.value()).Add(request.value).value();
}

uint64_t ReferenceOf(const AbandonUseRequest& request) {
  return Begin(Kind::kAbandonUse).Add(request.use.value()).value();
}

uint64_t ReferenceOf(const PlanRequest& request) {
  Reference fingerprint = Begin(Kind::kMakePlan).Add(request.units).Add(request.label);
  fingerprint.Add(uint64_t{request.devices.size()});
  for (const std::string& device : request.devices) fingerprint.Add(device);
  fingerprint.Add(static_cast<uint64_t>(request.source)).Add(uint64_t{request.weights.size()});
  for (const double weight : request.weights) fingerprint.Add(absl::bit_cast<uint64_t>(weight));
  AddBounds(request.among, request.visible, &fingerprint);
  return fingerprint.Add(request.bytes_per_unit.count())
      .Add(request.min_units)
      .Add(request.max_devices)
      .Add(uint64_t{request.one_island})
      .Add(request.pool)
      .Add(request.permit_units)
      .Add(uint64_t{request.reserve})
      .Add(uint64_t{request.wait})
      .Add(request.client_cap)
      .Add(uint64_t{request.independent})
      .Add(static_cast<uint64_t>(int64_t{request.priority}))
      .value();
}

uint64_t ReferenceOf(const ReplanRequest& request) {
  return Begin(Kind::kReplan).Add(request.plan.value()).Add(uint64_t{request.reweigh}).value();
}

uint64_t ReferenceOf(PlanId released) { return Begin(Kind::kReleasePlan).Add(released.value()).value(); }

uint64_t ReferenceOf(const ObtainModuleRequest& request) {
  return Begin(Kind::kObtainModule)
      .Add(request.key.bytes())
      .Add(request.architecture)
      .Add(request.compiler)
      .Add(request.label)
      .Add(request.distrusted.bytes())
      .value();
}

uint64_t ReferenceOf(const StoreModuleRequest& request) {
  return Begin(Kind::kStoreModule)
      .Add(request.compile.value())
      .Add(request.bytes.count())
      .Add(request.content.bytes())
      .value();
}

uint64_t ReferenceOf(const AbandonModuleRequest& request) {
  return Begin(Kind::kAbandonModule).Add(request.compile.value()).Add(request.error).value();
}

// ---- Requests with every field set, and with as few as possible --------------------------------------------------

DeviceConstraint FullConstraint() {
  return {.pick = DevicePick::kNamed,
          .uuid = "GPU-1",
          .min_free = Bytes(3),
          .declared = Bytes(4),
          .min_capability = 90,
          .island_of = "GPU-2",
          .among = {"GPU-1", "GPU-3"},
          .visible = "0,1",
          .wait_for_device = true};
}

BlockHandle FullHandle() {
  return {.node = 1,
          .incarnation = UINT64_MAX,
          .device_uuid = "GPU-1",
          .block = BlockId(3),
          .generation = 4,
          .block_generation = 5};
}

Digest DigestOf(uint8_t byte) {
  Digest digest;
  digest.bits.fill(byte);
  return digest;
}

template <typename Request>
void ExpectSame(const Request& request) {
  EXPECT_EQ(FingerprintOf(request), ReferenceOf(request)) << "kind " << RequestTraits<Request>::kKind;
}

TEST(FingerprintValuesTest, PermitFingerprintsMatchFirstVersion) {
  ExpectSame(AcquireRequest());
  ExpectSame(AcquireRequest{.pool = "p",
                            .units = 2,
                            .holder_key = "k",
                            .label = "l",
                            .wait = false,
                            .client_cap = 3,
                            .adoptable = true,
                            .independent = true,
                            .priority = -7,
                            .exclusive = true,
                            .device = FullConstraint(),
                            .keep = true});
  ExpectSame(AcquisitionId(7));
  ExpectSame(KeepPermitsRequest());
  ExpectSame(ReleaseIfIdleRequest{.acquisition = AcquisitionId(8)});
  ExpectSame(GangRequest());
  ExpectSame(GangRequest{.members = {{.pool = "p", .units = 2, .client_cap = 3, .device = FullConstraint()},
                                     {.pool = "q"}},
                         .reserve = {{.device = 1, .device_uuid = "GPU-1", .bytes = Bytes(9)}, {.device = 2}},
                         .reserve_for = absl::Seconds(5),
                         .holder_key = "k",
                         .label = "l",
                         .wait = false,
                         .adoptable = true,
                         .independent = true,
                         .priority = 10,
                         .exclusive = true});
}

TEST(FingerprintValuesTest, MemoryFingerprintsMatchFirstVersion) {
  ExpectSame(AllocateRequest());
  ExpectSame(AllocateRequest{.device = 1,
                             .device_uuid = "GPU-1",
                             .bytes = Bytes(2),
                             .label = "l",
                             .reservation = ReservationId(3),
                             .wait = true,
                             .kinds = {.fd = false, .cuda_ipc = true},
                             .constraint = FullConstraint()});
  ExpectSame(AllocateRequest{.kinds = {.fd = true, .cuda_ipc = true}});
  ExpectSame(FreeRequest{.handle = FullHandle()});
  ExpectSame(FreeRequest{.handle = FullHandle(), .let_go = {ImportId(1), ImportId(2)}});
  ExpectSame(GrantRequest{.handle = FullHandle(), .grantee = SessionId(4)});
  ExpectSame(GrantRequest{.handle = FullHandle(), .grantee = Tenant{.uid = 5, .container = "c"}});
  const Tenant charged = {.uid = 5, .container = "c", .charged_account = Account{.uid = 6}};
  ExpectSame(GrantRequest{.handle = FullHandle(), .grantee = charged});
  ExpectSame(ImportRequest{.handle = FullHandle(), .read_only = true, .kinds = {.cuda_ipc = true}});
  ExpectSame(ImportRequest{.name = "w", .publisher = charged});
  ExpectSame(PublishRequest{.handle = FullHandle(), .name = "w"});
  ExpectSame(PublishRequest{.handle = FullHandle(), .name = "w", .let_go = {ImportId(1)}, .replace = true});
  ExpectSame(UnpublishRequest{.name = "w"});
  ExpectSame(UnpublishRequest{.name = "w", .tenant = charged});
  ExpectSame(ReserveRequest());
  ExpectSame(ReserveRequest{.items = {{.device = 1, .device_uuid = "GPU-1", .bytes = Bytes(9)}, {.device = 2}},
                            .label = "l",
                            .ttl = absl::Milliseconds(5)});
  ExpectSame(ReservationId(6));
}

TEST(FingerprintValuesTest, FenceFingerprintsMatchFirstVersion) {
  ExpectSame(OpenStreamRequest{.device = 1, .default_stream = true});
  ExpectSame(CloseStreamRequest{.slot = 2});
  ExpectSame(PrepareUseRequest{.slot = 3});
  ExpectSame(PrepareUseRequest{
      .slot = 3,
      .uses = {{.block = BlockId(4), .access = Access::kReadWrite}, {.block = BlockId(5), .access = Access::kWrite}},
      .patience = absl::Seconds(1)});
  ExpectSame(FinishUseRequest{.use = UseId(6), .value = 7});
  ExpectSame(AbandonUseRequest{.use = UseId(8)});
}

TEST(FingerprintValuesTest, PlanFingerprintsMatchFirstVersion) {
  ExpectSame(PlanRequest());
  ExpectSame(PlanRequest{.units = 100,
                         .label = "l",
                         .devices = {"GPU-1", "GPU-2"},
                         .among = {"GPU-1"},
                         .visible = "0",
                         .source = WeightSource::kGiven,
                         .weights = {0.5, -1.25},
                         .bytes_per_unit = Bytes(3),
                         .min_units = 4,
                         .max_devices = 5,
                         .one_island = true,
                         .pool = "p",
                         .permit_units = 6,
                         .reserve = true,
                         .wait = false,
                         .client_cap = 7,
                         .independent = true,
                         .priority = -10});
  ExpectSame(ReplanRequest{.plan = PlanId(1), .reweigh = true});
  ExpectSame(PlanId(2));
}

TEST(FingerprintValuesTest, ModuleFingerprintsMatchFirstVersion) {
  ExpectSame(ObtainModuleRequest{.key = DigestOf(1),
                                 .architecture = "sm_90",
                                 .compiler = "nvrtc",
                                 .label = "l",
                                 .distrusted = DigestOf(2)});
  ExpectSame(StoreModuleRequest{.compile = CompileId(3), .bytes = Bytes(4), .content = DigestOf(5)});
  ExpectSame(AbandonModuleRequest{.compile = CompileId(6), .error = "line 1"});
}

// Answers in the ledger name their results by these indices.
TEST(FingerprintValuesTest, ResponseIndicesMatchFirstVersion) {
  using First =
      std::variant<AcquireResult, ReleaseResult, AllocateResult, FreeResult, GrantResult, ImportResult, PublishResult,
                   UnpublishResult, ReserveResult, ReleaseReservationResult, ReapResult, ForgetResult,
                   OpenStreamResult, CloseStreamResult, Prepared, FinishUseResult, AbandonUseResult, GangResult,
                   KeepPermitsResult, PlanResult, ReleasePlanResult, ObtainModuleResult, StoreModuleResult,
                   AbandonModuleResult, DrainResult>;
  EXPECT_TRUE((std::is_same_v<response_internal::Variant, First>));
}

}  // namespace
}  // namespace berth::core
