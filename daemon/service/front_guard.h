// FrontGuard: holds clients to the rates at which they may connect and call, and says whom it has ended: in the log, in
// the audit log, and in figures.

#ifndef DAEMON_SERVICE_FRONT_GUARD_H_
#define DAEMON_SERVICE_FRONT_GUARD_H_

#include <cstdint>

#include "daemon/service/accept_gate.h"
#include "daemon/service/audit_log.h"
#include "daemon/service/connection_table.h"
#include "daemon/service/frame_meter.h"
#include "daemon/service/read_gate.h"
#include "daemon/service/refusal_log.h"

namespace berth::service {

// Thread-safe.
class FrontGuard {
 public:
  // `connections` and `audit` must outlive the guard, and the guard gRPC's server.
  FrontGuard(ConnectionTable* connections, AuditLog* audit, const AcceptRates& accepts);

  // Of gRPC's sockets.
  AcceptGate* accept_gate() { return &accept_gate_; }
  // Charges what is read of the connection from now on; before gRPC has its fd.
  void Watch(int fd) { read_gate_.Watch(fd); }

  uint64_t refused_total() const { return accept_gate_.refused_total(); }
  uint64_t ended_total() const { return connections_.ended_total(); }

 private:
  bool Charge(int fd, const FrameCost& cost);

  ConnectionTable& connections_;
  AuditLog& audit_;
  AcceptGate accept_gate_;
  RefusalLog log_;
  ReadGate read_gate_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_FRONT_GUARD_H_
