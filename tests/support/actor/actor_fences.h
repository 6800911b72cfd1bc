// Fence commands of the test actor, for streams of the host.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_FENCES_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_FENCES_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <berth/launch_recorder.h>
#include <berth/session.h>
#include <berth/stream.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/notification.h"
#include "tests/support/actor/actor_blocks.h"
#include "tests/support/actor/actor_churn.h"

namespace berth::testing {

//   stream S [default]                  opens a stream; prints its id
//   close-stream S   sync S             sync prints the result of the stream's checks
//   gate S   open-gate S                gate blocks the stream until open-gate opens its oldest gate
//   queue-fill S BLOCK SEED   queue-check S BLOCK SEED
//   preflight L S BLOCK:r|w|rw… [ms=N]  begins the launch L; answers "torn" if a block is torn
//   commit L   abandon L                commit answers "torn", too
//   clear-torn BLOCK
//   use-churn BLOCK N S…                uses the block N times on these streams in turn (actor_churn.h)
//   churned BLOCK                       prints the number of uses by this actor so far
//   await-churn BLOCK   stop-churn BLOCK
//                                       print the number of uses by this actor
//   count BLOCK [S]                     prints the number of uses by all actors; reads the block in a use on the stream
//                                       S, or without a use where no actor uses the block
class ActorFences {
 public:
  // `blocks` must outlive this.
  ActorFences(std::shared_ptr<Session> session, ActorBlocks* blocks)
      : session_(std::move(session)), blocks_(*blocks) {}

  // Errors: kUnimplemented for a verb of another command group.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  struct QueuedStream {
    // Result of the stream's checks since the last sync; written on the stream's thread.
    absl::Status checks;
    std::deque<std::shared_ptr<Notification>> gates;
    // Last member, so that the stream is destroyed first.
    std::shared_ptr<Stream> stream;
  };

  absl::StatusOr<std::string> Open(const std::vector<std::string>& words);
  absl::StatusOr<std::string> DoOn(QueuedStream& queued, const std::string& verb,
                                   const std::vector<std::string>& words);
  absl::StatusOr<std::string> Preflight(const std::vector<std::string>& words);
  absl::StatusOr<std::string> DoChurn(const std::string& verb, const std::vector<std::string>& words);

  const std::shared_ptr<Session> session_;
  ActorBlocks& blocks_;
  std::map<std::string, QueuedStream> streams_;
  std::map<std::string, std::unique_ptr<LaunchRecorder>> launches_;
  std::map<std::string, std::unique_ptr<Churn>> churns_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_FENCES_H_
