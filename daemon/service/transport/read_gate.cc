#include "daemon/service/transport/read_gate.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <span>
#include <utility>

#include "daemon/supervisor/fd_store/fd_reserve.h"

namespace berth::service {
namespace {

// Most cost that a connection accumulates before it is charged, so that few reads need a charge.
constexpr uint64_t kLoadOwed = 64 * FrameCost::kCall;
constexpr uint64_t kResetsOwed = 16;

std::atomic<ReadGate*> the_gate = nullptr;

using Recvmsg = ssize_t (*)(int, msghdr*, int);

}  // namespace

void ReadGate::Release::operator()(Slot* slots) const { ::free(slots); }

ReadGate::ReadGate(Charge charge)
    : charge_(std::move(charge)),
      slot_count_(FdNumbers()),
      slots_(static_cast<Slot*>(::calloc(static_cast<size_t>(slot_count_), sizeof(Slot)))) {
  the_gate.store(this, std::memory_order_release);
}

ReadGate::~ReadGate() { the_gate.store(nullptr, std::memory_order_release); }

void ReadGate::Watch(int fd) {
  if (fd >= slot_count_) return;
  Slot& slot = slots_[static_cast<size_t>(fd)];
  slot.ended = false;
  slot.meter = FrameMeter();
  slot.uncharged = FrameCost();
  slot.watched.store(true, std::memory_order_release);
}

ssize_t ReadGate::Admit(int fd, const msghdr& message, ssize_t size) {
  if (fd < 0 || fd >= slot_count_) return size;
  Slot& slot = slots_[static_cast<size_t>(fd)];
  if (!slot.watched.load(std::memory_order_acquire)) return size;
  const ssize_t admitted = Weigh(fd, message, size, &slot);
  // Publishes the slot to the thread that reads the connection next.
  slot.watched.store(true, std::memory_order_release);
  return admitted;
}

ssize_t ReadGate::Weigh(int fd, const msghdr& message, ssize_t size, Slot* slot) {
  if (slot->ended) return 0;
  size_t left = static_cast<size_t>(size);
  for (size_t i = 0; i < message.msg_iovlen && left > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t here = std::min(left, part.iov_len);
    slot->uncharged += slot->meter.Scan({static_cast<const std::byte*>(part.iov_base), here});
    left -= here;
  }
  if (slot->uncharged.load < kLoadOwed && slot->uncharged.resets < kResetsOwed) return size;
  if (charge_(fd, std::exchange(slot->uncharged, FrameCost()))) return size;
  slot->ended = true;
  ::shutdown(fd, SHUT_RDWR);
  return 0;
}

}  // namespace berth::service

// Replaces the C library's function for all of this program and its libraries.
extern "C" ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static const auto next = reinterpret_cast<berth::service::Recvmsg>(::dlsym(RTLD_NEXT, "recvmsg"));
  const ssize_t size = next(fd, message, flags);
  berth::service::ReadGate* const gate = berth::service::the_gate.load(std::memory_order_acquire);
  return size > 0 && gate != nullptr ? gate->Admit(fd, *message, size) : size;
}
