// A broker for tests of the vault: it keeps its side of the custody protocol and does what the test tells it
// over berthd.sock, one line a connection:
//
//   facts          "<node> <incarnation> <epoch> <devices>"
//   held           a line "<kind> <id>" for each fd that was given at the start
//   text ID        what the given block ID reads
//   put ID TEXT    puts a block that reads TEXT
//   put-and-die ID TEXT   the same with an answer of the vault's unread, then SIGKILL
//   pid   die      its pid; ends it by SIGKILL
//   drop ID        drops the block
//   create DEVICE  what the test's `create` makes of the device's worker
//   order VERB DEVICE   orders it of the vault: kill, restart, enable, reset, drop
//   status DEVICE  what the vault said last of the device's worker: restarts left, generation, last failure
//   garbage        sends the vault what is no message
//   await TEXT     answers when TEXT is among the notices that have come
//
// $BERTH_FAKE_BROKER makes it misbehave: "fail" ends before it serves, "once" too, but for the first one, and
// "deaf" ignores Stop.

#ifndef DAEMON_VAULT_FAKE_BROKER_H_
#define DAEMON_VAULT_FAKE_BROKER_H_

#include <string>
#include <vector>

namespace berth {

// `create` is given the broker's end of a worker's socket. A vault that follows one that is gone is started with
// `vault_flags`.
// Returns: the process's exit code.
int RunFakeBroker(int custody_fd, const std::vector<std::string>& vault_flags,
                  std::string (*create)(int socket));

}  // namespace berth

#endif  // DAEMON_VAULT_FAKE_BROKER_H_
