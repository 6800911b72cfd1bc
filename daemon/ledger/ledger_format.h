// A ledger's file as it lies on disk: a header, then frames, each a batch of changes that a step of the core has made
// (common/row.h). Numbers are those of this machine: the file lives as long as the boot.
//
//   header | frame | batch | frame | batch | … | room
//
// A commit is: frame and batch behind what is there, then one word of the header, which says how far the file goes.
// What lies behind that was under way when its writer died, and is nothing.

#ifndef DAEMON_LEDGER_LEDGER_FORMAT_H_
#define DAEMON_LEDGER_LEDGER_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace berth {

struct LedgerHeader {
  static constexpr uint64_t kMagic = 0x3172676465687462;  // "bthedgr1"
  // Of header and frames; what the batches' rows are is `schema`.
  static constexpr uint32_t kFormat = 1;

  uint64_t magic = kMagic;
  uint32_t format = kFormat;
  uint32_t schema = 0;
  uint64_t node = 0;
  uint64_t incarnation = 0;
  // The kernel's id of this boot; zero-padded.
  std::array<char, 40> boot = {};
  // Of all above.
  uint64_t checksum = 0;
  // The last word that a commit writes, on a cache line of its own: bytes of the file that count in the lower 48
  // bits, a checksum of them in the others.
  alignas(64) uint64_t committed = 0;
};
static_assert(std::is_trivially_copyable_v<LedgerHeader> && sizeof(LedgerHeader) == 192);
static_assert(offsetof(LedgerHeader, committed) == 128);

// Stands before a batch.
struct LedgerFrame {
  // 1, 2, 3, … within the file.
  uint64_t number = 0;
  // Of the batch.
  uint32_t size = 0;
  // Of number, size and batch.
  uint32_t checksum = 0;
};
static_assert(std::is_trivially_copyable_v<LedgerFrame> && sizeof(LedgerFrame) == 16);

}  // namespace berth

#endif  // DAEMON_LEDGER_LEDGER_FORMAT_H_
