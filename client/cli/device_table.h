// The table of devices, which several verbs show.

#ifndef CLIENT_CLI_DEVICE_TABLE_H_
#define CLIENT_CLI_DEVICE_TABLE_H_

#include <string>

#include "berth/v1/device.pb.h"

namespace berth::cli {

std::string DeviceTable(const v1::ListDevicesResponse& answer);

}  // namespace berth::cli

#endif  // CLIENT_CLI_DEVICE_TABLE_H_
