#include "tests/support/books.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace berth::testing {

absl::StatusOr<Books> ReadBooks(const Inspector& inspector) {
  Books books;
  BERTH_ASSIGN_OR_RETURN(const v1::ListPermitsResponse permits, inspector.ListPermits());
  books.permits = static_cast<uint64_t>(permits.permits_size());
  books.waiters = static_cast<uint64_t>(permits.waiters_size());
  BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
  for (const v1::Pool& pool : pools.pools()) books.units += pool.out();
  BERTH_ASSIGN_OR_RETURN(const v1::ListSessionsResponse sessions, inspector.ListSessions());
  books.sessions = static_cast<uint64_t>(sessions.sessions_size());
  for (const v1::Session& session : sessions.sessions()) {
    books.processes += static_cast<uint64_t>(session.processes_size());
  }
  BERTH_ASSIGN_OR_RETURN(const v1::ListBlocksResponse blocks, inspector.ListBlocks());
  books.blocks = static_cast<uint64_t>(blocks.blocks_size());
  for (const v1::Block& block : blocks.blocks()) books.imports += static_cast<uint64_t>(block.imports_size());
  BERTH_ASSIGN_OR_RETURN(const v1::Usage usage, inspector.GetUsage());
  for (const v1::Device& device : usage.devices()) {
    books.live += device.bytes().live();
    books.retired += device.bytes().retired();
    books.quarantined += device.bytes().quarantined();
    books.warm += device.bytes().warm();
    books.reserved += device.bytes().reserved();
  }
  return books;
}

std::string Describe(const Books& books) {
  std::string text = absl::StrCat("permits ", books.permits, " units ", books.units, " waiters ",
                                  books.waiters, " sessions ", books.sessions, " processes ", books.processes,
                                  " blocks ", books.blocks, " imports ", books.imports, "\n  live ",
                                  books.live, " retired ", books.retired, " quarantined ", books.quarantined,
                                  " warm ", books.warm, " reserved ", books.reserved, "\n  fds");
  for (const auto& [name, count] : books.fds) absl::StrAppend(&text, " ", name, " ", count);
  return text;
}

void PrintTo(const Books& books, std::ostream* out) { *out << Describe(books); }

}  // namespace berth::testing
