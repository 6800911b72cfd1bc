// Commands of the test actor that send false statements to the daemon, past the checks of the SDK.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_LIES_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_LIES_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <berth/session.h>

#include "absl/status/statusor.h"
#include "client/sdk/fences/fences.h"
#include "tests/support/actor/actor_blocks.h"

namespace berth::testing {

//   claim-finish BLOCK VALUE    prepares a write of the block, finishes it with that value, and writes no such value
//   claim-prepare BLOCK SLOT    prepares a write on that slot
//   claim-use USE VALUE         finishes that use
//   let-go IMPORT               reports the import as released, but retains it
//   retain BLOCK                retains a mapping of the block that the SDK does not know of
//   check-retained BLOCK SEED   fill-retained BLOCK SEED
class ActorLies {
 public:
  // `blocks` must outlive this.
  ActorLies(std::shared_ptr<Session> session, ActorBlocks* blocks)
      : session_(std::move(session)), blocks_(*blocks) {}

  // Errors: kUnimplemented for a verb of another command group.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  struct Retained {
    void* at = nullptr;
    size_t bytes = 0;
  };

  absl::StatusOr<std::string> SendLie(const std::string& verb, const std::vector<std::string>& words);
  absl::StatusOr<std::string> Retain(const std::string& block);

  const std::shared_ptr<Session> session_;
  ActorBlocks& blocks_;
  std::shared_ptr<internal::Fences> fences_;
  std::optional<internal::OpenedStream> stream_;
  std::map<std::string, Retained> retained_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_LIES_H_
