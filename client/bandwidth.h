// How fast devices are at their own memory, for plans of work that is bound by that.
//
//   absl::StatusOr<std::vector<double>> measured = berth::MeasureBandwidth(session, uuids);
//   auto plan = berth::Plan::Make(session, {.units = n, .devices = uuids, .weigh_by = berth::PlanWeights::kBandwidth,
//                                           .weights = *measured});

#ifndef CLIENT_BANDWIDTH_H_
#define CLIENT_BANDWIDTH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session.h"
#include "common/bytes.h"

namespace berth {

// Fills a block of `bytes` on each device, several times over, one device after the other: what else runs there
// meanwhile makes it slower. Takes tens of milliseconds a device, and of CUDA's the primary context. Returns: bytes
// per second, in the devices' order. Errors: those of Block::Allocate() and Block::Map(); the driver's.
absl::StatusOr<std::vector<double>> MeasureBandwidth(const std::shared_ptr<Session>& session,
                                                     const std::vector<std::string>& uuids,
                                                     Bytes bytes = MiB(256));

}  // namespace berth

#endif  // CLIENT_BANDWIDTH_H_
