#include "tests/bench/measurements/hoard.h"

#include <cstddef>
#include <utility>

#include <berth/bytes.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace berth::bench {
namespace {

// Words at the start of each block that are written; a crowd's blocks exceed a machine's memory.
constexpr size_t kWords = 1024;

// Returns the word at `index`, which differs from every other block's.
uint64_t WordOf(const BlockHandle& handle, size_t index) {
  return handle.block.value() * 0x9e3779b97f4a7c15 + index * 0xbf58476d1ce4e5b9;
}

uint64_t* WordsAt(const Mapping& mapping) { return static_cast<uint64_t*>(mapping.data()); }

}  // namespace

absl::Status Hoard::Add(const std::string& folder, const HoardShare& share) {
  BERTH_ASSIGN_OR_RETURN(const auto session,
                         Session::Open({.folder = folder, .label = kHoardLabel, .always_new = true}));
  sessions_.push_back(session);
  for (uint32_t i = 0; i < share.blocks; ++i) {
    BERTH_ASSIGN_OR_RETURN(Block block, Block::Allocate(session, {.bytes = MiB(2)}));
    if (!share.written) {
      blocks_.push_back(std::move(block));
      continue;
    }
    BERTH_ASSIGN_OR_RETURN(Mapping mapping, block.Map());
    for (size_t word = 0; word < kWords; ++word) WordsAt(mapping)[word] = WordOf(block.handle(), word);
    written_.push_back({.block = std::move(block), .mapping = std::move(mapping)});
  }
  PermitOptions options;
  options.pool = kHoardPool;
  for (uint32_t i = 0; i < share.permits; ++i) {
    options.holder_key = absl::StrCat("holder ", i);
    BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session, options));
    permits_.push_back(std::move(permit));
  }
  return absl::OkStatus();
}

void Hoard::BeginToWait(const HoardShare& share) {
  PermitOptions options;
  options.pool = kHoardPool;
  for (const auto& session : sessions_) {
    for (uint32_t i = 0; i < share.waiters; ++i) {
      options.holder_key = absl::StrCat("waiter ", i);
      {
        MutexLock lock(&waited_->mu);
        ++waited_->open;
      }
      Permit::AcquireAsync(session, options, [waited = waited_](absl::StatusOr<Permit> permit) {
        MutexLock lock(&waited->mu);
        --waited->open;
        waited->granted.push_back(std::move(permit));
        waited->changed.SignalAll();
      });
    }
  }
}

absl::Status Hoard::CheckBytes() const {
  for (const HeldBlock& held : written_) {
    for (size_t word = 0; word < kWords; ++word) {
      if (WordsAt(held.mapping)[word] == WordOf(held.block.handle(), word)) continue;
      return absl::DataLossError(absl::StrCat("block ", held.block.handle().block.value(), ", word ", word,
                                              ": not what was written"));
    }
  }
  return absl::OkStatus();
}

absl::Status Hoard::PassPermitsOn() {
  for (Permit& permit : std::exchange(permits_, {})) BERTH_RETURN_IF_ERROR(permit.Release());
  MutexLock lock(&waited_->mu);
  while (waited_->open > 0) waited_->changed.Wait(&waited_->mu);
  for (absl::StatusOr<Permit>& permit : std::exchange(waited_->granted, {})) {
    BERTH_RETURN_IF_ERROR(permit.status());
    permits_.push_back(*std::move(permit));
  }
  return absl::OkStatus();
}

absl::Status Hoard::Return() {
  for (Permit& permit : std::exchange(permits_, {})) BERTH_RETURN_IF_ERROR(permit.Release());
  for (Block& block : std::exchange(blocks_, {})) BERTH_RETURN_IF_ERROR(block.Free());
  for (HeldBlock& held : std::exchange(written_, {})) {
    { const Mapping gone = std::move(held.mapping); }
    BERTH_RETURN_IF_ERROR(held.block.Free());
  }
  return absl::OkStatus();
}

}  // namespace berth::bench
