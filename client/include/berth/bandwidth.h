// Measures the memory bandwidth of devices, for plans of bandwidth-bound work.
//
//   absl::StatusOr<std::vector<double>> measured = berth::MeasureBandwidth(session, uuids);
//   auto plan = berth::Plan::Make(session, {.units = n, .devices = uuids, .weigh_by = berth::PlanWeights::kBandwidth,
//                                           .weights = *measured});

#ifndef BERTH_BANDWIDTH_H_
#define BERTH_BANDWIDTH_H_

#include <memory>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/session.h>

#include "absl/status/statusor.h"

namespace berth {

// Fills a block of `bytes` on each device several times, one device after the other. Other work on a device lowers its
// result. Takes tens of milliseconds per device, and retains the primary context of a CUDA device. Returns: bytes per
// second, in the order of the devices. Errors: those of Block::Allocate() and Block::Map(); the driver's.
absl::StatusOr<std::vector<double>> MeasureBandwidth(const std::shared_ptr<Session>& session,
                                                     const std::vector<std::string>& uuids,
                                                     Bytes bytes = MiB(256));

}  // namespace berth

#endif  // BERTH_BANDWIDTH_H_
