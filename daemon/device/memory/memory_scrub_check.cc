#include "daemon/device/memory/memory_scrub_check.h"

#include <string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/cuda/device_mapping.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/device/memory/vmm_backend.h"

namespace berth {
namespace {

constexpr Bytes kPiece = MiB(64);
// Bytes of a piece read at a time.
constexpr Bytes kLook = MiB(4);
constexpr uint8_t kPattern = 0xA5;

ScrubFinding Finding(ScrubOutcome outcome, absl::string_view detail) {
  ScrubFinding finding = {.outcome = outcome};
  // The rest of the field stays zero.
  ToMessage(detail, sizeof(finding.detail) - 4).copy(finding.detail, sizeof(finding.detail) - 1);
  return finding;
}

absl::StatusOr<std::vector<cuda::DeviceMapping>> Make(cuda::Driver& driver, int ordinal, VmmBackend& memory,
                                                      Bytes bytes) {
  std::vector<cuda::DeviceMapping> pieces;
  for (uint64_t made = 0; made < bytes.count(); made += kPiece.count()) {
    BERTH_ASSIGN_OR_RETURN(MemoryBlock block, memory.Allocate(kPiece, "memory-scrub check"));
    // From here on the mapping alone keeps the memory alive.
    BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, memory.HandOver(block));
    BERTH_ASSIGN_OR_RETURN(cuda::DeviceMapping piece,
                           cuda::DeviceMapping::Map(driver, fd.get(), kPiece, ordinal, false));
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// Returns the number of 64-bit words of the piece that are not zero.
absl::StatusOr<uint64_t> CountStale(cuda::Driver& driver, const cuda::DeviceMapping& piece,
                                    std::vector<uint64_t>& words) {
  uint64_t stale = 0;
  for (uint64_t at = 0; at < kPiece.count(); at += kLook.count()) {
    BERTH_RETURN_IF_ERROR(driver.CopyToHost(std::as_writable_bytes(std::span(words)), piece.ptr() + at));
    // Normally all words are zero, which memcmp() finds faster than a count.
    if (words[0] == 0 && memcmp(&words[0], &words[1], kLook.count() - sizeof(words[0])) == 0) continue;
    stale += words.size() - std::count(words.begin(), words.end(), 0);
  }
  return stale;
}

absl::StatusOr<ScrubFinding> Look(cuda::Driver& driver, int ordinal, Bytes bytes,
                                  absl::FunctionRef<void()> in_context) {
  BERTH_ASSIGN_OR_RETURN(const int shared, driver.Attribute(ordinal, cuda::DeviceAttribute::kManyContexts));
  if (shared == 0) return ScrubNotTried("the device's compute mode admits one process at a time");
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver.RetainPrimaryContext(ordinal));
  const absl::Cleanup release = [&] { driver.ReleasePrimaryContext(ordinal).IgnoreError(); };
  BERTH_RETURN_IF_ERROR(driver.SetCurrentContext(context));
  in_context();
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<VmmBackend> memory, VmmBackend::Open(driver, ordinal));
  {
    BERTH_ASSIGN_OR_RETURN(const std::vector<cuda::DeviceMapping> written,
                           Make(driver, ordinal, *memory, bytes));
    for (const cuda::DeviceMapping& piece : written) {
      BERTH_RETURN_IF_ERROR(driver.Fill(piece.ptr(), kPattern, kPiece));
    }
    BERTH_RETURN_IF_ERROR(driver.SynchronizeContext());
  }
  BERTH_ASSIGN_OR_RETURN(const std::vector<cuda::DeviceMapping> fresh, Make(driver, ordinal, *memory, bytes));
  std::vector<uint64_t> words(kLook.count() / sizeof(uint64_t));
  uint64_t stale = 0;
  for (const cuda::DeviceMapping& piece : fresh) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t found, CountStale(driver, piece, words));
    stale += found;
  }
  const std::string size = FormatBytes(bytes);
  if (stale == 0) return Finding(ScrubOutcome::kClear, absl::StrCat("found no stale word in ", size));
  return Finding(ScrubOutcome::kStale, absl::StrCat("found ", stale, " stale words in ", size));
}

}  // namespace

ScrubFinding CheckScrub(cuda::Driver& driver, int ordinal, Bytes bytes, absl::FunctionRef<void()> in_context) {
  const absl::StatusOr<ScrubFinding> finding = Look(driver, ordinal, bytes, in_context);
  return finding.ok() ? *finding : ScrubNotTried(finding.status().message());
}

ScrubFinding ScrubNotTried(absl::string_view why) {
  return Finding(ScrubOutcome::kNotTried, absl::StrCat("not tried: ", why));
}

}  // namespace berth
