// GroupWitness distinguishes a signal sent to a whole process group from a signal sent only to this process.
//
// The kernel does not mark the difference. The witness is a process of the same group that blocks every signal and does
// nothing else. A signal that reached both processes was sent to the group: by a terminal, by `kill 0` or by
// `kill -- -PGID`.
//
// Senders that select processes by name must not find both processes for the name of the wrapper, so the witness has
// another name. It shares the command line and the executable file of the wrapper: a fork instead of a process with the
// same memory takes `berth run` a tenth longer.

#ifndef CLIENT_CLI_RUN_GROUP_WITNESS_H_
#define CLIENT_CLI_RUN_GROUP_WITNESS_H_

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <array>
#include <memory>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth::cli {

// Number of deliveries of each signal, indexed by signal number.
using SignalCounts = std::array<uint32_t, NSIG + 1>;

// One caller at a time. Cheap to start: the witness shares this process's memory and file descriptors.
class GroupWitness {
 public:
  // Requires: the calling thread blocks every signal and lives as long as the witness; the kernel kills the witness
  // when the thread ends.
  static absl::StatusOr<std::unique_ptr<GroupWitness>> Start();
  // Ends the witness process. Call it before an exec.
  ~GroupWitness();
  GroupWitness(const GroupWitness&) = delete;
  GroupWitness& operator=(const GroupWitness&) = delete;

  pid_t pid() const { return pid_; }

  // Returns the signals that have reached the witness since the last call. They include every group signal that this
  // process has already received, except a stop signal that a later SIGCONT has discarded, and vice versa. Every
  // returned group signal has reached this process. Async-signal-safe; a process made by vfork() from this process may
  // call it, too.
  const SignalCounts& Take();
  // Resumes a witness that a group SIGSTOP has stopped. Take() does not count the SIGCONT of this call. A group SIGCONT
  // that this process has received reached the witness earlier, and is counted.
  void Continue() const;

  // Waits until a running kill() has reached every process of its group. kill() holds the kernel's task-list lock for
  // reading until then; this function's system call first acquires the same lock for writing.
  static void AwaitKill();

 private:
  GroupWitness(UniqueFd ask, UniqueFd answer, void* stack);
  static int Run(void* self);

  const UniqueFd ask_;
  const UniqueFd answer_;
  void* const stack_;
  const pid_t parent_;
  pid_t pid_ = -1;
  // Written by the witness.
  SignalCounts counts_ = {};
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_GROUP_WITNESS_H_
