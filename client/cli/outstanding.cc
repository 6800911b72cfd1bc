#include "client/cli/outstanding.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/exit_status.h"
#include "client/cli/format.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Maximum number of permits that are listed individually.
constexpr size_t kMostNamed = 16;

bool IsOn(const v1::Permit& permit, uint32_t device) {
  return permit.has_device() && permit.device().ordinal() == device;
}

}  // namespace

absl::StatusOr<Outstanding> LookAtOutstanding(const Inspector& inspector, std::optional<uint32_t> device) {
  Outstanding out;
  BERTH_ASSIGN_OR_RETURN(const v1::Node node, inspector.GetNode());
  if (node.ledger_unreadable()) return absl::FailedPreconditionError(node.ledger_fault());
  BERTH_ASSIGN_OR_RETURN(const v1::ListPermitsResponse answer, inspector.ListPermits());
  for (const v1::Permit& permit : answer.permits()) {
    if (!device.has_value() || IsOn(permit, *device)) out.permits.push_back(permit);
  }
  // The list of waiters may be cut.
  if (!device.has_value()) out.waiting = answer.waiting_requests();
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
  std::string text = absl::StrCat(
      "out: ", CountOf(out.permits.size(), "permit"), ", ",
      out.waiting.has_value() ? absl::StrCat(CountOf(*out.waiting, "waiting request"), ", ") : "",
      CountOf(out.blocks, "block"), " of ", FormatCount(out.bytes),
      out.named == 0 ? "" : absl::StrCat(" (", out.named, " named)"), "\n");
  const size_t named = std::min(out.permits.size(), kMostNamed);
  for (size_t i = 0; i < named; ++i) {
    const v1::Permit& permit = out.permits[i];
    absl::StrAppend(&text, "  permit ", permit.id(), ": ", permit.units(), " of ", permit.pool(), ", held for ",
                    FormatSince(permit.grant_time(), now), " by ", FormatProcess(permit.process()),
                    permit.label().empty() ? "" : absl::StrCat(", label ", permit.label()), "\n");
  }
  if (out.permits.size() > named) absl::StrAppend(&text, "  ", out.permits.size() - named, " more\n");
  return text;
}

absl::Status Confirm(absl::string_view effect, absl::string_view question, bool yes) {
  PrintError(effect);
  if (yes) return absl::OkStatus();
  // A question that goes elsewhere would be a wait without a word.
  if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0) {
    return absl::FailedPreconditionError(
        "nothing changed: no terminal to ask for confirmation; add --yes to proceed without");
  }
  PrintError(absl::StrCat(question, " [y/N] "));
  char line[16] = {};
  if (::fgets(line, sizeof(line), stdin) != nullptr) {
    // Another word with a "y" may be the next command, typed ahead.
    const std::string answer = absl::AsciiStrToLower(absl::StripAsciiWhitespace(line));
    if (answer == "y" || answer == "yes") return absl::OkStatus();
  }
  return absl::CancelledError("nothing changed: not confirmed");
}

}  // namespace berth::cli
