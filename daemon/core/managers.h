// Managers: the parts of the core. Each owns its tables and reaches the others by their public methods only.

#ifndef DAEMON_CORE_MANAGERS_H_
#define DAEMON_CORE_MANAGERS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/core.h"
#include "daemon/core/devices/devices.h"
#include "daemon/core/devices/workers.h"
#include "daemon/core/fences/fences.h"
#include "daemon/core/memory/allocations.h"
#include "daemon/core/memory/blocks.h"
#include "daemon/core/memory/budgets.h"
#include "daemon/core/memory/byte_queue.h"
#include "daemon/core/memory/reservations.h"
#include "daemon/core/modules/module_manager.h"
#include "daemon/core/permits/permits.h"
#include "daemon/core/plans/plans.h"
#include "daemon/core/requests/leases.h"
#include "daemon/core/requests/memory_log.h"
#include "daemon/core/requests/requests.h"
#include "daemon/core/requests/wait_place.h"
#include "daemon/core/sessions/sessions.h"
#include "daemon/core/sessions/shutdown.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/operator_settings.h"
#include "daemon/core/types/restored_state.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

// Thread-compatible.
struct Managers {
  Managers(Config the_config, Core::DrawId draw_id, ReadFenceValues read, FindPermitSlot find,
           FindTakeUpWords find_take_up);
  Managers(const Managers&) = delete;
  Managers& operator=(const Managers&) = delete;

  // Expires what is due at the beginning of a step.
  void Begin(StepContext& step);
  // Expires the waits whose deadline has passed.
  void Expire(StepContext& step);
  absl::Time next_deadline();
  // The managers in which requests wait, in the order in which their waits expire.
  std::array<WaitPlace*, 5> places();
  template <typename IdType>
  IdType NewId() {
    return IdType(draw_id());
  }

  // ---- managers.cc: CheckInvariants() of core.h --------------------------------------------------------------

  absl::Status CheckInvariants();
  absl::Status CheckReferences();
  absl::Status CheckSums();

  // ---- recovery/: state that outlives the broker --------------------------------------------------------------
  //
  // List…Records() lists the records of a group of kinds. Write…Record() writes a record, or returns false if it is
  // gone. Read…Record() restores a record. Records are restored in key order, after the earlier groups.

  OperatorSettings ListOperatorSettings() const;
  void TakeChanges(RecordBatch* changes);
  LedgerRecords AllRecords() const;
  absl::Status Restore(const RecordViews& records, const ArchiveOrigin& origin);
  RestoredState WhatStands() const;
  void Resume(StepContext& step);
  void ResumeMemory(StepContext& step);
  bool WriteRecord(const RecordKey& key, ArchiveWriter& archive) const;
  void ListMemoryRecords(std::vector<RecordKey>* keys) const;
  bool WriteMemoryRecord(const RecordKey& key, ArchiveWriter& archive) const;
  void ReadMemoryRecord(const RecordKey& key, ArchiveReader& archive);
  void ReadMemoryCounters(ArchiveReader& archive);

  const Config config;
  const Core::DrawId draw_id;
  Journal journal;
  // Number of the last effect.
  uint64_t last_effect = 0;
  Requests requests;
  MemoryLog memory_log;
  Leases leases;
  Sessions sessions;
  Shutdown shutdown;
  Permits permits;
  Plans plans;
  Blocks blocks;
  Allocations allocations;
  Reservations reservations;
  ByteQueue byte_queue;
  Budgets budgets;
  Fences fences;
  ModuleManager modules;
  Devices devices;
  Workers workers;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MANAGERS_H_
