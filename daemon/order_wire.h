// What the core orders of a device, as the vault is told.

#ifndef DAEMON_ORDER_WIRE_H_
#define DAEMON_ORDER_WIRE_H_

#include "daemon/core/effects.h"
#include "daemon/vault/custody_wire.h"

namespace berth {

custody::OrderKind ToWire(core::DeviceOrder order);

}  // namespace berth

#endif  // DAEMON_ORDER_WIRE_H_
