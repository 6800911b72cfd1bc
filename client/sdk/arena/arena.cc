#include <berth/arena.h>

#include "client/sdk/arena/arena_core.h"
#include "client/sdk/arena/arena_session_source.h"
#include "common/status_macros.h"

namespace berth {

absl::StatusOr<std::shared_ptr<Arena>> Arena::Create(const std::shared_ptr<Session>& session,
                                                     ArenaOptions options) {
  auto source = std::make_shared<internal::ArenaSessionSource>(session, options);
  BERTH_ASSIGN_OR_RETURN(auto core, internal::ArenaCore::Create(source, options));
  return std::shared_ptr<Arena>(new Arena(std::move(core), source->kind()));
}

Arena::Arena(std::unique_ptr<internal::ArenaCore> core, BlockKind kind)
    : core_(std::move(core)), kind_(kind) {}

Arena::~Arena() = default;

absl::StatusOr<void*> Arena::Allocate(Bytes bytes, ArenaStream stream) {
  return core_->Allocate(bytes, stream);
}

absl::Status Arena::Free(void* pointer, ArenaStream stream) { return core_->Free(pointer, stream); }

absl::Status Arena::UsedOn(void* pointer, ArenaStream stream) { return core_->UsedOn(pointer, stream); }

void Arena::ForgetStream(ArenaStream stream) { core_->ForgetStream(stream); }

absl::StatusOr<Bytes> Arena::Trim() { return core_->Trim(); }

ArenaStats Arena::Stats() const { return core_->Stats(); }

BlockKind Arena::kind() const { return kind_; }

Bytes Arena::alignment() const { return core_->alignment(); }

absl::StatusOr<ArenaBuffer> ArenaBuffer::Allocate(std::shared_ptr<Arena> arena, Bytes bytes,
                                                  ArenaStream stream) {
  BERTH_ASSIGN_OR_RETURN(void* const data, arena->Allocate(bytes, stream));
  return ArenaBuffer(std::move(arena), data, bytes, stream);
}

absl::Status ArenaBuffer::Free() {
  if (data_ == nullptr) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(arena_->Free(data_, stream_));
  data_ = nullptr;
  arena_ = nullptr;
  return absl::OkStatus();
}

}  // namespace berth
