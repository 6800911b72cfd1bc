#include "daemon/broker/fence_page_manager.h"

#include <atomic>
#include <string>
#include <utility>

#include "common/os/memfd.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

fd_store::Key PageKey(ChannelId channel) { return fd_store::KeyOf(fd_store::Kind::kFencePage, channel.value()); }

}  // namespace

absl::StatusOr<FencePageManager::Held> FencePageManager::MakePage(ChannelId channel) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateFencePage(channel));
  BERTH_ASSIGN_OR_RETURN(FencePage page, FencePage::MapWritable(fd.get()));
  BERTH_RETURN_IF_ERROR(fd_store_.Put(PageKey(channel), fd.get(), FdOwner::kClient));
  return Held{.fd = std::move(fd), .page = std::move(page)};
}

void FencePageManager::Make(ChannelId channel) {
  {
    MutexLock lock(&mu_);
    // An earlier broker made it.
    if (pages_.contains(channel)) return;
  }
  absl::StatusOr<Held> made = MakePage(channel);
  if (!made.ok()) {
    spdlog::error("cannot create the fence page of side channel {}: {}", channel.value(),
                  std::string(made.status().message()));
    return;
  }
  MutexLock lock(&mu_);
  pages_.emplace(channel, *std::move(made));
}

absl::Status FencePageManager::Adopt(ChannelId channel, UniqueFd fd) {
  BERTH_ASSIGN_OR_RETURN(FencePage page, FencePage::MapWritable(fd.get()));
  MutexLock lock(&mu_);
  pages_.emplace(channel, Held{.fd = std::move(fd), .page = std::move(page)});
  return absl::OkStatus();
}

void FencePageManager::Drop(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto found = pages_.find(channel);
  if (found == pages_.end()) return;
  found->second.page.SetTop();
  fd_store_.Drop(PageKey(channel));
  pages_.erase(found);
}

absl::StatusOr<UniqueFd> FencePageManager::Open(ChannelId channel, bool read_only) const {
  MutexLock lock(&mu_);
  const auto found = pages_.find(channel);
  if (found == pages_.end()) return absl::NotFoundError("the process has no fence page");
  return read_only ? ReopenReadOnly(found->second.fd.get()) : DuplicateFd(found->second.fd.get());
}

absl::StatusOr<UniqueFd> FencePageManager::OpenOwn(ChannelId channel) {
  // The core requests the page once and does not learn whether that succeeded.
  Make(channel);
  return Open(channel, /*read_only=*/false);
}

core::FenceValues FencePageManager::Read(core::StreamKey stream) const {
  MutexLock lock(&mu_);
  const auto found = pages_.find(stream.channel);
  if (found == pages_.end()) return {};
  const FenceSlot& slot = found->second.page.slot(stream.slot);
  return {.done = slot.done.load(std::memory_order_acquire),
          .begun = slot.begun.load(std::memory_order_acquire),
          .ended = slot.ended.load(std::memory_order_acquire)};
}

PermitSlot* FencePageManager::FindPermitSlot(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto found = pages_.find(channel);
  return found == pages_.end() ? nullptr : &found->second.page.permit_slot();
}

TakeUpWords* FencePageManager::FindTakeUpWords(ChannelId channel) {
  MutexLock lock(&mu_);
  const auto found = pages_.find(channel);
  return found == pages_.end() ? nullptr : &found->second.page.take_up();
}

void FencePageManager::LetGo(HeldFd held) {
  if (absl::StatusOr<FencePage> page = FencePage::MapWritable(held.fd.get()); page.ok()) {
    page->SetTop();
    page->permit_slot().End(0);
  }
  fd_store_.Drop(held.key);
}

}  // namespace berth
