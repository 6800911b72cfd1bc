#include "daemon/broker/fence_keeper.h"

#include <atomic>
#include <string>
#include <utility>

#include "common/memfd.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

custody::Key PageKey(ChannelId channel) { return custody::KeyOf(custody::Kind::kFencePage, channel.value()); }

}  // namespace

absl::StatusOr<FenceKeeper::Held> FenceKeeper::MakePage(ChannelId channel) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateFencePage(channel));
  BERTH_ASSIGN_OR_RETURN(FencePage page, FencePage::MapWritable(fd.get()));
  BERTH_RETURN_IF_ERROR(custody_.Put(PageKey(channel), fd.get(), FdOwner::kClient));
  return Held{.fd = std::move(fd), .page = std::move(page)};
}

void FenceKeeper::Make(ChannelId channel) {
  {
    MutexLock lock(&mu_);
    // An earlier broker made it.
    if (pages_.contains(channel)) return;
  }
  absl::StatusOr<Held> made = MakePage(channel);
  if (!made.ok()) {
    spdlog::error("no fence page for channel {:x}: {}", channel.value(),
                  std::string(made.status().message()));
    return;
  }
  MutexLock lock(&mu_);
  pages_.emplace(channel, *std::move(made));
}

void FenceKeeper::Adopt(ChannelId channel, UniqueFd fd) {
  absl::StatusOr<FencePage> page = FencePage::MapWritable(fd.get());
  if (!page.ok()) {
    spdlog::error("the fence page of channel {:x} is lost: {}", channel.value(),
                  std::string(page.status().message()));
    return;
  }
  MutexLock lock(&mu_);
  pages_.emplace(channel, Held{.fd = std::move(fd), .page = *std::move(page)});
}

void FenceKeeper::Drop(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto found = pages_.find(channel);
  if (found == pages_.end()) return;
  found->second.page.SetTop();
  custody_.Drop(PageKey(channel));
  pages_.erase(found);
}

absl::StatusOr<UniqueFd> FenceKeeper::Open(ChannelId channel, bool read_only) const {
  MutexLock lock(&mu_);
  const auto found = pages_.find(channel);
  if (found == pages_.end()) return absl::NotFoundError("the process has no fence page");
  return read_only ? ReopenReadOnly(found->second.fd.get()) : DuplicateFd(found->second.fd.get());
}

absl::StatusOr<UniqueFd> FenceKeeper::OpenOwn(ChannelId channel) {
  // The core has it made once, and does not hear what became of that.
  Make(channel);
  return Open(channel, /*read_only=*/false);
}

core::StreamWords FenceKeeper::Read(core::StreamKey stream) const {
  MutexLock lock(&mu_);
  const auto found = pages_.find(stream.channel);
  if (found == pages_.end()) return {};
  const FenceSlot& slot = found->second.page.slot(stream.slot);
  return {.done = slot.done.load(std::memory_order_acquire),
          .begun = slot.begun.load(std::memory_order_acquire),
          .ended = slot.ended.load(std::memory_order_acquire)};
}

PermitWord* FenceKeeper::FindPermitWord(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto found = pages_.find(channel);
  return found == pages_.end() ? nullptr : &found->second.page.permit_word();
}

void FenceKeeper::LetGo(HeldFd held) {
  if (absl::StatusOr<FencePage> page = FencePage::MapWritable(held.fd.get()); page.ok()) {
    page->SetTop();
    page->permit_word().End(0);
  }
  custody_.Drop(held.key);
}

}  // namespace berth
