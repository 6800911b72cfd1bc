// The part of an actor that tells the daemon what is not so, past all that the SDK keeps right.

#ifndef TESTS_SUPPORT_ACTOR_LIES_H_
#define TESTS_SUPPORT_ACTOR_LIES_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/internal/fences.h"
#include "client/session.h"
#include "tests/support/actor_blocks.h"

namespace berth::testing {

//   tell-finish BLOCK VALUE     prepares a write of the block, finishes it with that value, and writes no such thing
//   tell-prepare BLOCK SLOT     prepares one on that slot
//   tell-use USE VALUE          finishes that use
//   let-go IMPORT               says that the import is let go, and keeps it
//   keep BLOCK                  keeps a mapping of the block's that the SDK knows nothing of
//   check-kept BLOCK SEED   fill-kept BLOCK SEED
class ActorLies {
 public:
  // `blocks` must outlive this.
  ActorLies(std::shared_ptr<Session> session, ActorBlocks* blocks)
      : session_(std::move(session)), blocks_(*blocks) {}

  // Errors: kUnimplemented for a verb that is no lie.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  struct Kept {
    void* at = nullptr;
    size_t bytes = 0;
  };

  absl::StatusOr<std::string> Tell(const std::string& verb, const std::vector<std::string>& words);
  absl::StatusOr<std::string> Keep(const std::string& block);

  const std::shared_ptr<Session> session_;
  ActorBlocks& blocks_;
  std::shared_ptr<internal::Fences> fences_;
  std::optional<internal::OpenedStream> stream_;
  std::map<std::string, Kept> kept_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_LIES_H_
