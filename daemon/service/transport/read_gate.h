// ReadGate: meters the bytes that gRPC reads of each connection, and ends a connection that costs too much.
//
// gRPC 1.51 passes the bytes to no hook before it acts on them. A gRPC thread that reads a connection continues as long
// as there is more: two connections with endless bytes block every other call on a machine of four cores. The gate
// therefore interposes this program's recvmsg(). The gate costs a read a few nanoseconds. On other sockets this
// recvmsg() behaves as the C library's.

#ifndef DAEMON_SERVICE_TRANSPORT_READ_GATE_H_
#define DAEMON_SERVICE_TRANSPORT_READ_GATE_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>

#include "daemon/service/transport/frame_meter.h"

namespace berth::service {

// Thread-safe. At most one in a process at a time; all readers through it must have ended before it is destroyed.
class ReadGate {
 public:
  // Charges a connection, by its fd number, for the bytes read. Returns whether it may continue. Called on the reading
  // threads, not for every read.
  using Charge = std::function<bool(int fd, const FrameCost& cost)>;

  explicit ReadGate(Charge charge);
  ReadGate(const ReadGate&) = delete;
  ReadGate& operator=(const ReadGate&) = delete;
  ~ReadGate();

  // Meters the reads of `fd` from now on as a new connection's. Call before the first read.
  void Watch(int fd);

  // Handles `size` bytes that recvmsg() has read into `message`. Returns: recvmsg()'s result; 0, which means end of
  // stream, once the connection may not continue.
  ssize_t Admit(int fd, const msghdr& message, ssize_t size);

 private:
  struct Slot {
    // Stored after each read, loaded before the next.
    std::atomic<bool> watched;
    // The other fields belong to the one thread at a time that reads the connection.
    bool ended;
    FrameMeter meter;
    FrameCost uncharged;
  };
  struct Release {
    void operator()(Slot* slots) const;
  };
  // Returns Admit()'s result for a watched connection.
  ssize_t Weigh(int fd, const msghdr& message, ssize_t size, Slot* slot);

  const Charge charge_;
  const int slot_count_;
  // Indexed by fd number. Unused slots are never touched, and take no memory.
  const std::unique_ptr<Slot[], Release> slots_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TRANSPORT_READ_GATE_H_
