// Fingerprint: what a request asks, as 64 bits, so that a sequence used again for something else is noticed.
// It guards a client against its own mistakes; a client that makes two payloads collide gets its own first
// answer.

#ifndef DAEMON_CORE_FINGERPRINT_H_
#define DAEMON_CORE_FINGERPRINT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "daemon/core/block_types.h"
#include "daemon/core/budget_types.h"
#include "daemon/core/fence_types.h"
#include "daemon/core/gang_types.h"
#include "daemon/core/module_types.h"
#include "daemon/core/permit_types.h"
#include "daemon/core/plan_types.h"

namespace berth::core {

// FNV-1a over typed fields, the same in every process: each field has its length or is of fixed width, so
// that neighbours cannot run together.
class Fingerprint {
 public:
  Fingerprint& Add(uint64_t value);
  Fingerprint& Add(absl::string_view text);
  uint64_t value() const { return value_; }

 private:
  static constexpr uint64_t kPrime = 0x100000001b3;

  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * kPrime; }

  uint64_t value_ = 0xcbf29ce484222325;
};

// Of each request with its kind. Deadlines are left out: a retry has another one.
uint64_t FingerprintOf(const AcquireRequest& request);
uint64_t FingerprintOf(const GangRequest& request);
uint64_t FingerprintOf(AcquisitionId released);
uint64_t FingerprintOf(const AllocateRequest& request);
uint64_t FingerprintOf(const FreeRequest& request);
uint64_t FingerprintOf(const PublishRequest& request);
uint64_t FingerprintOf(const UnpublishRequest& request);
uint64_t FingerprintOf(const ReserveRequest& request);
uint64_t FingerprintOf(ReservationId released);
uint64_t FingerprintOf(const GrantRequest& request);
uint64_t FingerprintOf(const ImportRequest& request);
uint64_t FingerprintOf(const KeepPermitsRequest& request);
uint64_t FingerprintOf(const ReleaseIfIdleRequest& request);
uint64_t FingerprintOf(const OpenStreamRequest& request);
uint64_t FingerprintOf(const CloseStreamRequest& request);
uint64_t FingerprintOf(const PrepareUseRequest& request);
uint64_t FingerprintOf(const FinishUseRequest& request);
uint64_t FingerprintOf(const AbandonUseRequest& request);
uint64_t FingerprintOf(const PlanRequest& request);
uint64_t FingerprintOf(const ReplanRequest& request);
uint64_t FingerprintOf(PlanId released);
uint64_t FingerprintOf(const ObtainModuleRequest& request);
uint64_t FingerprintOf(const StoreModuleRequest& request);
uint64_t FingerprintOf(const AbandonModuleRequest& request);

}  // namespace berth::core

#endif  // DAEMON_CORE_FINGERPRINT_H_
