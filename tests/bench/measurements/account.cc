#include "tests/bench/measurements/account.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/status_macros.h"

namespace berth::bench {
namespace {

using Lines = std::vector<std::string>;

absl::Status Sort(Lines* lines) {
  std::sort(lines->begin(), lines->end());
  const auto twice = std::adjacent_find(lines->begin(), lines->end());
  if (twice == lines->end()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("listed twice: ", *twice));
}

absl::Status ExpectSum(const char* what, uint64_t listed, uint64_t sum) {
  if (listed == sum) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", listed, " listed, ", sum, " in the sums"));
}

absl::Status ExpectSame(const Lines& before, const Lines& later) {
  Lines lost, gained;
  std::set_difference(before.begin(), before.end(), later.begin(), later.end(), std::back_inserter(lost));
  std::set_difference(later.begin(), later.end(), before.begin(), before.end(), std::back_inserter(gained));
  if (lost.empty() && gained.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(lost.size(), " lost", lost.empty() ? "" : ", as " + lost.front(), "; ",
                                          gained.size(), " gained", gained.empty() ? "" : ", as " + gained.front()));
}

}  // namespace

absl::StatusOr<Account> TakeAccount(const std::string& folder, const std::string& pool) {
  BERTH_ASSIGN_OR_RETURN(const auto session, Session::Open({.folder = folder, .admin = true, .always_new = true}));
  const Inspector inspector(session);
  Account account;
  BERTH_ASSIGN_OR_RETURN(const v1::ListPermitsResponse permits, inspector.ListPermits(pool));
  uint64_t units = 0;
  for (const v1::Permit& permit : permits.permits()) {
    units += permit.units();
    account.permits.push_back(absl::StrCat("permit ", permit.id(), " of session ", permit.session(), ", ",
                                           permit.holder_key(), ": ", permit.units(), " units"));
  }
  for (const v1::Waiter& waiter : permits.waiters()) {
    account.waiters.push_back(absl::StrCat("waiter ", waiter.number(), " of session ", waiter.session(), ", ",
                                           waiter.holder_key(), ": ", waiter.units(), " units"));
  }
  BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
  for (const v1::Pool& each : pools.pools()) {
    if (each.name() == pool) account.units = each.out();
  }
  BERTH_ASSIGN_OR_RETURN(const v1::ListBlocksResponse blocks, inspector.ListBlocks());
  uint64_t live_bytes = 0;
  for (const v1::Block& block : blocks.blocks()) {
    if (block.state() == v1::Block::LIVE) live_bytes += block.bytes();
    account.blocks.push_back(absl::StrCat("block ", block.handle().block(), " of session ", block.owner(), ": ",
                                          block.bytes(), " bytes, ", v1::Block::State_Name(block.state())));
  }
  BERTH_ASSIGN_OR_RETURN(const v1::Usage usage, inspector.GetUsage());
  for (const v1::Device& device : usage.devices()) {
    account.live_bytes += device.bytes().live();
    account.other_bytes += device.bytes().retired() + device.bytes().quarantined() + device.bytes().reserved();
  }
  for (Lines* const lines : {&account.permits, &account.waiters, &account.blocks}) {
    BERTH_RETURN_IF_ERROR(Sort(lines));
  }
  BERTH_RETURN_IF_ERROR(ExpectSum("units", units, account.units));
  BERTH_RETURN_IF_ERROR(ExpectSum("live bytes", live_bytes, account.live_bytes));
  return account;
}

absl::Status ExpectSame(const Account& before, const Account& later) {
  BERTH_RETURN_IF_ERROR(ExpectSame(before.permits, later.permits));
  BERTH_RETURN_IF_ERROR(ExpectSame(before.waiters, later.waiters));
  BERTH_RETURN_IF_ERROR(ExpectSame(before.blocks, later.blocks));
  BERTH_RETURN_IF_ERROR(ExpectSum("units before", before.units, later.units));
  BERTH_RETURN_IF_ERROR(ExpectSum("live bytes before", before.live_bytes, later.live_bytes));
  return ExpectSum("other bytes before", before.other_bytes, later.other_bytes);
}

}  // namespace berth::bench
