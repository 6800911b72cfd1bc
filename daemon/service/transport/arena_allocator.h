// ArenaAllocator: allocates a call's messages, and the parts of its answer, from one block of memory.

#ifndef DAEMON_SERVICE_TRANSPORT_ARENA_ALLOCATOR_H_
#define DAEMON_SERVICE_TRANSPORT_ARENA_ALLOCATOR_H_

#include <array>
#include <cstddef>

#include "google/protobuf/arena.h"
#include "grpcpp/support/message_allocator.h"

namespace berth::service {

// Thread-safe. Must outlive the server.
template <typename Request, typename Response>
class ArenaAllocator final : public grpc::MessageAllocator<Request, Response> {
 public:
  grpc::MessageHolder<Request, Response>* AllocateMessages() override { return new Holder(); }

 private:
  // Enough for a plan of 16 devices; the arena allocates more if needed.
  static constexpr size_t kFirstBytes = 6 * 1024;

  class Holder final : public grpc::MessageHolder<Request, Response> {
   public:
    Holder() : arena_(first_.data(), first_.size()) {
      this->set_request(google::protobuf::Arena::CreateMessage<Request>(&arena_));
      this->set_response(google::protobuf::Arena::CreateMessage<Response>(&arena_));
    }
    void Release() override { delete this; }

   private:
    alignas(std::max_align_t) std::array<char, kFirstBytes> first_;
    google::protobuf::Arena arena_;
  };
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TRANSPORT_ARENA_ALLOCATOR_H_
