// A broker for supervisor tests: it implements the broker's side of the fd store protocol and executes the test's
// commands from berthd.sock, one line per connection:
//
//   facts          "<node> <incarnation> <epoch> <devices>"
//   held           a line "<kind> <id>" for each fd that it holds
//   text ID        the text in the given block ID
//   put ID TEXT    puts a block that contains TEXT
//   put-and-die ID TEXT   the same with one answer of the supervisor's unread, then SIGKILL
//   pid   die      returns its pid; ends itself by SIGKILL
//   drop ID        drops the block
//   create DEVICE  the result of the test's `create` on the device's worker
//   order VERB DEVICE   sends a worker command to the supervisor: kill, restart, enable, reset, drop
//   status DEVICE  the last status of the device's worker: restarts left, generation, last failure
//   garbage        sends the supervisor an invalid message
//   await TEXT     answers once TEXT is among the received notices
//
// $BERTH_FAKE_BROKER makes it misbehave: "fail" ends before it serves, "once" does so in every epoch after the first,
// and "deaf" ignores Stop. "starve" ends before it serves, too, and leaves the supervisor no further fd.

#ifndef DAEMON_SUPERVISOR_TESTING_FAKE_BROKER_H_
#define DAEMON_SUPERVISOR_TESTING_FAKE_BROKER_H_

#include <string>
#include <vector>

namespace berth {

// `create` gets the broker's end of a worker's socket. A supervisor that replaces an ended one starts with
// `supervisor_flags`.
// Returns: the process's exit code.
int RunFakeBroker(int supervisor_fd, const std::vector<std::string>& supervisor_flags,
                  std::string (*create)(int socket));

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_TESTING_FAKE_BROKER_H_
