// The part of an actor that orders its work on blocks by fences, on streams of the host.

#ifndef TESTS_SUPPORT_ACTOR_FENCES_H_
#define TESTS_SUPPORT_ACTOR_FENCES_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/launch_recorder.h"
#include "client/session.h"
#include "client/stream.h"
#include "common/notification.h"
#include "tests/support/actor_blocks.h"
#include "tests/support/actor_churn.h"

namespace berth::testing {

//   stream S [default]                  opens a stream; says its id
//   close-stream S   sync S             sync says how the stream's checks went
//   gate S   open-gate S                has the stream wait until its oldest gate is opened
//   queue-fill S BLOCK SEED   queue-check S BLOCK SEED
//   preflight L S BLOCK:r|w|rw… [ms=N]  begins the launch L; says "torn" if a block is
//   commit L   abandon L                commit says "torn" too
//   clear-torn BLOCK
//   use-churn BLOCK N S…                uses the block N times on these streams in turn (actor_churn.h)
//   await-churn BLOCK   stop-churn BLOCK   count BLOCK
//                                       say how often it was used here; by all
class ActorFences {
 public:
  // `blocks` must outlive this.
  ActorFences(std::shared_ptr<Session> session, ActorBlocks* blocks)
      : session_(std::move(session)), blocks_(*blocks) {}

  // Errors: kUnimplemented for a verb that is not about fences.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);

 private:
  struct Lane {
    // Of the stream's checks since the last sync; written on its thread.
    absl::Status checks;
    std::deque<std::shared_ptr<Notification>> gates;
    // Last: it ends first.
    std::shared_ptr<Stream> stream;
  };

  absl::StatusOr<std::string> Open(const std::vector<std::string>& words);
  absl::StatusOr<std::string> DoOn(Lane& lane, const std::string& verb,
                                   const std::vector<std::string>& words);
  absl::StatusOr<std::string> Preflight(const std::vector<std::string>& words);
  absl::StatusOr<std::string> DoChurn(const std::string& verb, const std::vector<std::string>& words);

  const std::shared_ptr<Session> session_;
  ActorBlocks& blocks_;
  std::map<std::string, Lane> lanes_;
  std::map<std::string, std::unique_ptr<LaunchRecorder>> launches_;
  std::map<std::string, std::unique_ptr<Churn>> churns_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_FENCES_H_
