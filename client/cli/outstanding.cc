#include "client/cli/outstanding.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/exit_status.h"
#include "client/cli/format.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Maximum number of permits that are listed individually.
constexpr int kMostNamed = 16;

bool IsOn(const v1::Permit& permit, uint32_t device) {
  return permit.has_device() && permit.device().ordinal() == device;
}

}  // namespace

absl::StatusOr<Outstanding> LookAtOutstanding(const Inspector& inspector, std::optional<uint32_t> device) {
  Outstanding out;
  BERTH_ASSIGN_OR_RETURN(out.permits, inspector.ListPermits());
  if (device.has_value()) {
    auto& permits = *out.permits.mutable_permits();
    permits.erase(std::remove_if(permits.begin(), permits.end(),
                                 [&](const v1::Permit& permit) { return !IsOn(permit, *device); }),
                  permits.end());
    out.permits.clear_waiters();
  }
  BERTH_ASSIGN_OR_RETURN(const v1::ListBlocksResponse blocks, inspector.ListBlocks());
  for (const v1::Block& block : blocks.blocks()) {
    if (block.state() != v1::Block::LIVE || (device.has_value() && block.device() != *device)) continue;
    ++out.blocks;
    out.named += block.name().empty() ? 0 : 1;
    out.bytes += block.bytes();
  }
  return out;
}

std::string CountOf(uint64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string Describe(const Outstanding& out, absl::Time now) {
  const v1::ListPermitsResponse& permits = out.permits;
  std::string text = absl::StrCat(
      "out: ", CountOf(static_cast<uint64_t>(permits.permits_size()), "permit"), ", ",
      CountOf(static_cast<uint64_t>(permits.waiters_size()), "waiting request"), ", ", CountOf(out.blocks, "block"),
      " of ", FormatCount(out.bytes), out.named == 0 ? "" : absl::StrCat(" (", out.named, " named)"), "\n");
  for (int i = 0; i < std::min(permits.permits_size(), kMostNamed); ++i) {
    const v1::Permit& permit = permits.permits(i);
    absl::StrAppend(&text, "  permit ", permit.id(), ": ", permit.units(), " of ", permit.pool(), ", held for ",
                    FormatSince(permit.grant_time(), now), " by ", FormatProcess(permit.process()),
                    permit.label().empty() ? "" : absl::StrCat(", label ", permit.label()), "\n");
  }
  if (permits.permits_size() > kMostNamed) absl::StrAppend(&text, "  ", permits.permits_size() - kMostNamed, " more\n");
  return text;
}

absl::Status Confirm(absl::string_view effect, absl::string_view question, bool yes) {
  PrintError(effect);
  if (yes) return absl::OkStatus();
  if (::isatty(STDIN_FILENO) == 0) {
    return absl::FailedPreconditionError(
        "nothing changed: no terminal to ask for confirmation; add --yes to proceed without");
  }
  PrintError(absl::StrCat(question, " [y/N] "));
  char line[16] = {};
  if (::fgets(line, sizeof(line), stdin) != nullptr && (line[0] == 'y' || line[0] == 'Y')) return absl::OkStatus();
  return absl::CancelledError("nothing changed: not confirmed");
}

}  // namespace berth::cli
