#include "daemon/core/fingerprint.h"

#include <array>
#include <cstddef>

#include "absl/base/casts.h"

namespace berth::core {
namespace {

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

Fingerprint Begin(Kind kind) { return Fingerprint().Add(static_cast<uint64_t>(kind)); }

void AddHandle(const BlockHandle& handle, Fingerprint* fingerprint) {
  fingerprint->Add(handle.node)
      .Add(handle.incarnation)
      .Add(handle.device_uuid)
      .Add(handle.block.value())
      .Add(handle.generation)
      .Add(handle.block_generation);
}

void AddWish(const DeviceWish& wish, Fingerprint* fingerprint) {
  fingerprint->Add(static_cast<uint64_t>(wish.pick))
      .Add(wish.uuid)
      .Add(wish.min_free.count())
      .Add(wish.declared.count())
      .Add(uint64_t{wish.min_capability})
      .Add(wish.island_of);
}

void AddItems(const std::vector<ReserveItem>& items, Fingerprint* fingerprint) {
  for (const ReserveItem& item : items) {
    fingerprint->Add(uint64_t{item.device}).Add(item.device_uuid).Add(item.bytes.count());
  }
}

uint64_t BitsOf(const ExportKinds& kinds) { return (kinds.fd ? 1 : 0) | (kinds.cuda_ipc ? 2 : 0); }

}  // namespace

// Lowest byte first.
Fingerprint& Fingerprint::Add(uint64_t value) {
  static constexpr std::array<uint64_t, sizeof(value) + 1> kPowers = [] {
    std::array<uint64_t, sizeof(value) + 1> powers = {1};
    for (size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * kPrime;
    return powers;
  }();
  size_t left = sizeof(value);
  for (; value != 0; value >>= 8, --left) AddByte(static_cast<uint8_t>(value));
  // What a byte of zero does is to multiply.
  value_ *= kPowers[left];
  return *this;
}

Fingerprint& Fingerprint::Add(absl::string_view text) {
  Add(static_cast<uint64_t>(text.size()));
  for (const char c : text) AddByte(static_cast<uint8_t>(c));
  return *this;
}

uint64_t FingerprintOf(const GangRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kAcquireGang).Add(uint64_t{request.members.size()});
  for (const GangMember& member : request.members) {
    fingerprint.Add(member.pool).Add(member.units).Add(member.client_cap);
    AddWish(member.device, &fingerprint);
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

uint64_t FingerprintOf(const AcquireRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kAcquire);
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
  AddWish(request.device, &fingerprint);
  return fingerprint.value();
}

uint64_t FingerprintOf(AcquisitionId released) { return Begin(Kind::kRelease).Add(released.value()).value(); }

uint64_t FingerprintOf(const AllocateRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kAllocate);
  fingerprint.Add(uint64_t{request.device})
      .Add(request.device_uuid)
      .Add(request.bytes.count())
      .Add(request.label)
      .Add(request.reservation.value())
      .Add(uint64_t{request.wait})
      .Add(BitsOf(request.kinds));
  AddWish(request.wish, &fingerprint);
  return fingerprint.value();
}

uint64_t FingerprintOf(const ReserveRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kReserve);
  AddItems(request.items, &fingerprint);
  return fingerprint.Add(request.label)
      .Add(static_cast<uint64_t>(absl::ToInt64Nanoseconds(request.ttl)))
      .value();
}

uint64_t FingerprintOf(ReservationId released) {
  return Begin(Kind::kReleaseReservation).Add(released.value()).value();
}

uint64_t FingerprintOf(const FreeRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kFree);
  AddHandle(request.handle, &fingerprint);
  for (const ImportId import : request.let_go) fingerprint.Add(import.value());
  return fingerprint.value();
}

uint64_t FingerprintOf(const GrantRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kGrant);
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

uint64_t FingerprintOf(const ImportRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kImport);
  AddHandle(request.handle, &fingerprint);
  return fingerprint.Add(uint64_t{request.read_only}).Add(request.name).Add(BitsOf(request.kinds)).value();
}

uint64_t FingerprintOf(const PublishRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kPublish);
  AddHandle(request.handle, &fingerprint);
  fingerprint.Add(request.name);
  for (const ImportId import : request.let_go) fingerprint.Add(import.value());
  return fingerprint.value();
}

uint64_t FingerprintOf(const UnpublishRequest& request) {
  const Tenant tenant = request.tenant.value_or(Tenant());
  return Begin(Kind::kUnpublish)
      .Add(request.name)
      .Add(uint64_t{request.tenant.has_value()})
      .Add(uint64_t{tenant.uid})
      .Add(tenant.container)
      .value();
}

uint64_t FingerprintOf(const KeepPermitsRequest&) { return Begin(Kind::kKeepPermits).value(); }

uint64_t FingerprintOf(const ReleaseIfIdleRequest& request) {
  return Begin(Kind::kReleaseIfIdle).Add(request.acquisition.value()).value();
}

uint64_t FingerprintOf(const OpenStreamRequest& request) {
  return Begin(Kind::kOpenStream).Add(uint64_t{request.device}).Add(uint64_t{request.default_stream}).value();
}

uint64_t FingerprintOf(const CloseStreamRequest& request) {
  return Begin(Kind::kCloseStream).Add(uint64_t{request.slot}).value();
}

uint64_t FingerprintOf(const PrepareUseRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kPrepareUse).Add(uint64_t{request.slot});
  for (const BlockUse& use : request.uses) {
    fingerprint.Add(use.block.value()).Add(static_cast<uint64_t>(use.access));
  }
  return fingerprint.value();
}

uint64_t FingerprintOf(const FinishUseRequest& request) {
  return Begin(Kind::kFinishUse).Add(request.use.value()).Add(request.value).value();
}

uint64_t FingerprintOf(const AbandonUseRequest& request) {
  return Begin(Kind::kAbandonUse).Add(request.use.value()).value();
}

uint64_t FingerprintOf(const PlanRequest& request) {
  Fingerprint fingerprint = Begin(Kind::kMakePlan).Add(request.units).Add(request.label);
  fingerprint.Add(uint64_t{request.devices.size()});
  for (const std::string& device : request.devices) fingerprint.Add(device);
  fingerprint.Add(static_cast<uint64_t>(request.source)).Add(uint64_t{request.weights.size()});
  for (const double weight : request.weights) fingerprint.Add(absl::bit_cast<uint64_t>(weight));
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

uint64_t FingerprintOf(const ReplanRequest& request) {
  return Begin(Kind::kReplan).Add(request.plan.value()).Add(uint64_t{request.reweigh}).value();
}

uint64_t FingerprintOf(PlanId released) { return Begin(Kind::kReleasePlan).Add(released.value()).value(); }

uint64_t FingerprintOf(const ObtainModuleRequest& request) {
  return Begin(Kind::kObtainModule)
      .Add(request.key.bytes())
      .Add(request.architecture)
      .Add(request.compiler)
      .Add(request.label)
      .Add(request.distrusted.bytes())
      .value();
}

uint64_t FingerprintOf(const StoreModuleRequest& request) {
  return Begin(Kind::kStoreModule)
      .Add(request.compile.value())
      .Add(request.bytes.count())
      .Add(request.content.bytes())
      .value();
}

uint64_t FingerprintOf(const AbandonModuleRequest& request) {
  return Begin(Kind::kAbandonModule).Add(request.compile.value()).Add(request.error).value();
}

}  // namespace berth::core
