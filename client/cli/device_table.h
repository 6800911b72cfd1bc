// The table of devices, used by several verbs.

#ifndef CLIENT_CLI_DEVICE_TABLE_H_
#define CLIENT_CLI_DEVICE_TABLE_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/inventory.pb.h"
#include "berth/v1/resources.pb.h"
#include "google/protobuf/repeated_field.h"

namespace berth::cli {

std::string DeviceTable(const google::protobuf::RepeatedPtrField<v1::Device>& devices);
// As above for an inventory, with the age of the last driver sample of each device.
std::string DeviceTable(const v1::ListInventoryResponse& inventory);
// Counts the blocks of all devices whose memory was lost.
uint64_t CountLostBlocks(const google::protobuf::RepeatedPtrField<v1::Device>& devices);
// Returns a line such as "2 blocks lost: …" with the devices; empty if no block was lost.
std::string FormatLostBlocks(const google::protobuf::RepeatedPtrField<v1::Device>& devices);
// Formats the driver's reports on the devices, as of `now`; empty without reports.
std::string ReportTable(const google::protobuf::RepeatedPtrField<v1::DeviceReports>& reports, absl::Time now);
// Formats the hardware and health of the devices.
std::string HardwareTable(const v1::ListInventoryResponse& inventory);

}  // namespace berth::cli

#endif  // CLIENT_CLI_DEVICE_TABLE_H_
