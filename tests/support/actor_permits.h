// The part of an actor that acquires permits.

#ifndef TESTS_SUPPORT_ACTOR_PERMITS_H_
#define TESTS_SUPPORT_ACTOR_PERMITS_H_

#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cancellation.h"
#include "client/permit.h"
#include "client/session.h"
#include "common/notification.h"

namespace berth::testing {

class ActorPermits {
 public:
  explicit ActorPermits(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  ~ActorPermits();

  // Errors: kUnimplemented for a verb that is not about permits.
  absl::StatusOr<std::string> Do(const std::string& verb, const std::vector<std::string>& words);
  // What a forked child is told that acquires without waiting, and gives back what its parent has.
  absl::Status DoInForkedChild();

 private:
  // An acquire on a thread of its own.
  struct Begun {
    Cancellation cancellation;
    std::stop_source stop;
    std::thread thread;
    // Of an asynchronous one.
    Notification done;
    std::optional<absl::StatusOr<Permit>> result;
  };

  static void Wait(Begun& begun);
  absl::StatusOr<std::string> Acquire(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Begin(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Async(const std::vector<std::string>& words);
  absl::StatusOr<std::string> Join(const std::string& name);
  // Writes into this process's word what an honest one would not.
  absl::StatusOr<std::string> WriteWord(const std::string& what);
  // Acquires and releases so many times.
  absl::StatusOr<std::string> Spin(uint64_t count);
  absl::StatusOr<std::string> Release(const std::string& name);
  absl::StatusOr<std::string> DropElsewhere(const std::string& name);
  // `count` times: acquires, counts itself in at a counter that all processes share, and out again. Answers
  // the most that were in at once, as seen by this process.
  absl::StatusOr<std::string> Cycle(uint64_t count, const std::string& counter_path);
  // `count` acquires with deadlines of `spread_us` at most, every other thing as by chance from `seed`.
  // Answers how many were granted.
  absl::StatusOr<std::string> Rush(uint64_t count, uint64_t spread_us, uint64_t seed);

  const std::shared_ptr<Session> session_;
  std::map<std::string, Permit> permits_;
  std::map<std::string, std::unique_ptr<Begun>> begun_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ACTOR_PERMITS_H_
