// Permit commands of the test actor.

#ifndef TESTS_SUPPORT_ACTOR_ACTOR_PERMITS_H_
#define TESTS_SUPPORT_ACTOR_ACTOR_PERMITS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <berth/cancellation.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/notification.h"

namespace berth::testing {

class ActorPermits {
 public:
  explicit ActorPermits(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  ~ActorPermits();

  // Errors: kUnimplemented for a verb of another command group.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);
  // Runs in a forked child: acquires without waiting, and releases the permits of its parent.
  absl::Status DoInForkedChild();

 private:
  // An acquire on a separate thread.
  struct Begun {
    Cancellation cancellation;
    std::thread thread;
    // Set for an asynchronous acquire only.
    Notification done;
    std::optional<absl::StatusOr<Permit>> result;
  };

  static void Wait(Begun& begun);
  absl::StatusOr<std::string> Acquire(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Begin(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Async(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Join(const std::string& name);
  // Writes a value into this process's permit slot that an honest client would not write.
  absl::StatusOr<std::string> WriteSlot(const std::string& what);
  // Acquires and releases `count` times.
  absl::StatusOr<std::string> Spin(uint64_t count);
  absl::StatusOr<std::string> Release(const std::string& name);
  absl::StatusOr<std::string> DropElsewhere(const std::string& name);
  // `count` times: acquires, enters a counter that all processes share, and leaves it. Answers the highest number of
  // processes inside at once that this process saw.
  absl::StatusOr<std::string> Cycle(uint64_t count, const std::string& counter_path);
  // Makes `count` acquires with deadlines of `spread_us` at most; all other choices are random from `seed`. Answers how
  // many were granted.
  absl::StatusOr<std::string> Rush(uint64_t count, uint64_t spread_us, uint64_t seed);

  const std::shared_ptr<Session> session_;
  std::map<std::string, Permit> permits_;
  std::map<std::string, std::unique_ptr<Begun>> begun_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_ACTOR_PERMITS_H_
