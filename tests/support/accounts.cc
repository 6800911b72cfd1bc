#include "tests/support/accounts.h"

#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "common/status_macros.h"

namespace berth::testing {

absl::StatusOr<Accounts> ReadAccounts(const Inspector& inspector) {
  Accounts accounts;
  BERTH_ASSIGN_OR_RETURN(const v1::ListPermitsResponse permits, inspector.ListPermits());
  accounts.permits = static_cast<uint64_t>(permits.permits_size());
  for (const v1::PoolUse& pool : permits.pools()) accounts.waiters += pool.visible_waiters();
  BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
  for (const v1::Pool& pool : pools.pools()) accounts.units += pool.out();
  BERTH_ASSIGN_OR_RETURN(const v1::ListSessionsResponse sessions, inspector.ListSessions());
  accounts.sessions = static_cast<uint64_t>(sessions.sessions_size());
  for (const v1::Session& session : sessions.sessions()) {
    accounts.processes += static_cast<uint64_t>(session.processes_size());
  }
  BERTH_ASSIGN_OR_RETURN(const v1::ListBlocksResponse blocks, inspector.ListBlocks());
  accounts.blocks = static_cast<uint64_t>(blocks.blocks_size());
  for (const v1::Block& block : blocks.blocks()) accounts.imports += static_cast<uint64_t>(block.imports_size());
  BERTH_ASSIGN_OR_RETURN(const v1::Usage usage, inspector.GetUsage());
  for (const v1::Device& device : usage.devices()) {
    accounts.live += device.bytes().live();
    accounts.retired += device.bytes().retired();
    accounts.quarantined += device.bytes().quarantined();
    accounts.warm += device.bytes().warm();
    accounts.reserved += device.bytes().reserved();
  }
  return accounts;
}

std::string Describe(const Accounts& accounts) {
  std::string text = absl::StrCat("permits ", accounts.permits, " units ", accounts.units, " waiters ",
                                  accounts.waiters, " sessions ", accounts.sessions, " processes ", accounts.processes,
                                  " blocks ", accounts.blocks, " imports ", accounts.imports, "\n  live ",
                                  accounts.live, " retired ", accounts.retired, " quarantined ", accounts.quarantined,
                                  " warm ", accounts.warm, " reserved ", accounts.reserved, "\n  fds");
  for (const auto& [name, count] : accounts.fds) absl::StrAppend(&text, " ", name, " ", count);
  return text;
}

void PrintTo(const Accounts& accounts, std::ostream* out) { *out << Describe(accounts); }

}  // namespace berth::testing
