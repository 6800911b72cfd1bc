// The on-disk format of a ledger file: a header, then frames, each with a batch of changes of one core step
// (daemon/base/ledger_record.h). Numbers have the machine's byte order: the file is only valid until the next boot.
//
//   header | frame | batch | frame | batch | … | free
//
// A commit writes the frame and the batch after the existing ones, then the header's `committed`, which holds the
// length of the valid data. Data after that length was unfinished when its writer died, and is ignored.

#ifndef DAEMON_LEDGER_LEDGER_FORMAT_H_
#define DAEMON_LEDGER_LEDGER_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace berth {

struct LedgerHeader {
  static constexpr uint64_t kMagic = 0x3172676465687462;  // "bthedgr1"
  // Format of header and frames; `schema` is the schema of the records in the batches.
  static constexpr uint32_t kFormat = 1;

  uint64_t magic = kMagic;
  uint32_t format = kFormat;
  uint32_t schema = 0;
  uint64_t node = 0;
  uint64_t incarnation = 0;
  // The kernel's id of this boot; zero-padded.
  std::array<char, 40> boot = {};
  // Checksum of all fields above.
  uint64_t checksum = 0;
  // The last value that a commit writes, on a cache line of its own. The lower 48 bits are the valid bytes of the file,
  // the upper bits a checksum of that length.
  alignas(64) uint64_t committed = 0;
  // Not 0 once another file holds all records; this file then receives no more commits.
  uint64_t superseded = 0;
};
static_assert(std::is_trivially_copyable_v<LedgerHeader> && sizeof(LedgerHeader) == 192);
static_assert(offsetof(LedgerHeader, committed) == 128);

// The header of a batch.
struct LedgerFrame {
  // 1, 2, 3, … within the file.
  uint64_t number = 0;
  // Size of the batch in bytes.
  uint32_t size = 0;
  // Checksum of number, size and batch.
  uint32_t checksum = 0;
};
static_assert(std::is_trivially_copyable_v<LedgerFrame> && sizeof(LedgerFrame) == 16);

}  // namespace berth

#endif  // DAEMON_LEDGER_LEDGER_FORMAT_H_
