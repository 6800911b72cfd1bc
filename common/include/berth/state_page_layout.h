// The layout of the node's state page, from which every client reads whether its leases are still valid.
//
// Every value that a client's Access() reads is a 64-bit atomic of its own: no reader waits for a writer, and a
// writer's death leaves no half-written value.

#ifndef BERTH_STATE_PAGE_LAYOUT_H_
#define BERTH_STATE_PAGE_LAYOUT_H_

#include <atomic>
#include <cstdint>

#include <berth/ids.h>

namespace berth {

// The values of one device.
struct DeviceEntry {
  // Generation of the device's memory: 0 before its first start, then 1; rises by one with each loss or reset.
  std::atomic<uint64_t> generation;
  // 1 once the device has permanently left this node.
  std::atomic<uint64_t> dropped;
  // 1 while the device accepts no new work because it is being shut down.
  std::atomic<uint64_t> shutting_down;
  // Generation of the context worker's memory: 0 before the first start, then 1; rises by one whenever a context worker
  // has ended or is being ended.
  std::atomic<uint64_t> context_generation;
  std::atomic<uint64_t> reserved[4];
};

// The page as it lies in memory.
struct StatePageLayout {
  static constexpr uint64_t kMagic = 0x3130657461747362;  // "bstate01"
  // Programs of every version write another value once they have taken over.
  static constexpr uint64_t kTakeOverAwaited = 2;
  uint64_t magic;
  std::atomic<uint64_t> node;
  // Changes only when the ledger or the whole fd store was lost: handles of another incarnation are stale.
  std::atomic<uint64_t> incarnation;
  // Rises with every start of the broker.
  std::atomic<uint64_t> epoch;
  // 1 while a broker serves; the supervisor clears it when the broker dies.
  std::atomic<uint64_t> serving;
  // Written by the broker: 1 while it handles a client's message. If a broker finds 1 at its start, the message may
  // have killed the previous broker.
  std::atomic<uint64_t> hearing;
  // Written by the supervisor: 1 while another program's processes replace the daemon's, kTakeOverAwaited before that
  // program has taken over.
  std::atomic<uint64_t> upgrading;
  // Written by the broker: number of brokers that ended because they exceeded their memory limit.
  std::atomic<uint64_t> memory_restarts;
  DeviceEntry devices[kMaxDeviceOrdinals];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(StatePageLayout) == 64 + kMaxDeviceOrdinals * 64);

}  // namespace berth

#endif  // BERTH_STATE_PAGE_LAYOUT_H_
