// ReadGate: sees what gRPC reads of each connection as it reads it, and ends the connection that costs too much.
//
// gRPC 1.51 hands nobody the bytes before it acts on them, and a thread of it that reads a connection goes on as long
// as there is more: two connections that are never out of bytes keep a machine of four cores from every other call. So
// this stands where gRPC asks the kernel: recvmsg() of this program is the gate's. It costs a read a few nanoseconds;
// on any other socket it is the C library's.

#ifndef DAEMON_SERVICE_READ_GATE_H_
#define DAEMON_SERVICE_READ_GATE_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>

#include "daemon/service/frame_meter.h"

namespace berth::service {

// Thread-safe. At most one in a process at a time; whoever reads through it must have ended before it does.
class ReadGate {
 public:
  // Charges what was read of a connection, by its fd number. Returns whether it may go on. Called on the threads that
  // read, not for every read.
  using Charge = std::function<bool(int fd, const FrameCost& cost)>;

  explicit ReadGate(Charge charge);
  ReadGate(const ReadGate&) = delete;
  ReadGate& operator=(const ReadGate&) = delete;
  ~ReadGate();

  // Sees what is read of `fd` from now on as a new connection's. Before anybody reads of it.
  void Watch(int fd);

  // What recvmsg() does with `size` bytes that it has read into `message`. Returns: what it is to return; 0, which says
  // that the connection has ended, once that may not go on.
  ssize_t Admit(int fd, const msghdr& message, ssize_t size);

 private:
  struct Slot {
    // Stored again after each read, loaded before the next.
    std::atomic<bool> watched;
    // The rest is of the one thread at a time that reads the connection.
    bool ended;
    FrameMeter meter;
    FrameCost uncharged;
  };
  struct Release {
    void operator()(Slot* slots) const;
  };
  // What Admit() returns of a connection that is watched.
  ssize_t Weigh(int fd, const msghdr& message, ssize_t size, Slot* slot);

  const Charge charge_;
  const int slot_count_;
  // By fd number. Those that are never used are never touched, and take no memory.
  const std::unique_ptr<Slot[], Release> slots_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_READ_GATE_H_
