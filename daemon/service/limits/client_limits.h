// ClientLimits: enforces the rates at which clients may connect and call. Reports the connections it has ended in the
// log, in the audit log, and in metrics.

#ifndef DAEMON_SERVICE_LIMITS_CLIENT_LIMITS_H_
#define DAEMON_SERVICE_LIMITS_CLIENT_LIMITS_H_

#include <cstdint>

#include "daemon/service/audit/audit_log.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/service/limits/refusal_log.h"
#include "daemon/service/transport/connection_table.h"
#include "daemon/service/transport/frame_meter.h"
#include "daemon/service/transport/read_gate.h"

namespace berth::service {

// Thread-safe.
class ClientLimits {
 public:
  // `connections` and `audit` must outlive the guard; the guard must outlive gRPC's server.
  ClientLimits(ConnectionTable* connections, AuditLog* audit, const AcceptRates& accepts);

  // Gate of gRPC's sockets.
  AcceptGate* accept_gate() { return &accept_gate_; }
  // Charges the connection for all bytes read from now on; call before gRPC gets the fd.
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

#endif  // DAEMON_SERVICE_LIMITS_CLIENT_LIMITS_H_
