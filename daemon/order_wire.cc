#include "daemon/order_wire.h"

namespace berth {

custody::OrderKind ToWire(core::DeviceOrder order) {
  switch (order) {
    case core::DeviceOrder::kKill:
      return custody::OrderKind::kKill;
    case core::DeviceOrder::kRestart:
      return custody::OrderKind::kRestart;
    case core::DeviceOrder::kEnable:
      return custody::OrderKind::kEnable;
    case core::DeviceOrder::kReset:
      return custody::OrderKind::kReset;
    case core::DeviceOrder::kStart:
      return custody::OrderKind::kStart;
    case core::DeviceOrder::kEnd:
      return custody::OrderKind::kEnd;
    case core::DeviceOrder::kLose:
      return custody::OrderKind::kLose;
    case core::DeviceOrder::kDrain:
      return custody::OrderKind::kDrain;
    case core::DeviceOrder::kUndrain:
      return custody::OrderKind::kUndrain;
    case core::DeviceOrder::kKillMonitor:
      return custody::OrderKind::kKillMonitor;
    case core::DeviceOrder::kDrop:
      break;
  }
  return custody::OrderKind::kDrop;
}

}  // namespace berth
