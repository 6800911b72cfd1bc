// The table of devices, which several verbs show.

#ifndef CLIENT_CLI_DEVICE_TABLE_H_
#define CLIENT_CLI_DEVICE_TABLE_H_

#include <string>

#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/inventory.pb.h"
#include "berth/v1/resources.pb.h"
#include "google/protobuf/repeated_field.h"

namespace berth::cli {

std::string DeviceTable(const google::protobuf::RepeatedPtrField<v1::Device>& devices);
// The same of an inventory, with how old the driver's last word on each is.
std::string DeviceTable(const v1::ListInventoryResponse& inventory);
// What the driver has reported of them, as of `now`; empty where that is nothing.
std::string ReportTable(const google::protobuf::RepeatedPtrField<v1::DeviceReports>& reports, absl::Time now);
// What they are and how they feel.
std::string HardwareTable(const v1::ListInventoryResponse& inventory);

}  // namespace berth::cli

#endif  // CLIENT_CLI_DEVICE_TABLE_H_
