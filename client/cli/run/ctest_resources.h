// CTest's resources: the specification that `berth ctest-spec` offers to CTest, and the resources that CTest gave to a
// test. The formats are those of CTest's manual (RESOURCE_SPEC_FILE; the environment variables CTEST_RESOURCE_GROUP_N).

#ifndef CLIENT_CLI_RUN_CTEST_RESOURCES_H_
#define CLIENT_CLI_RUN_CTEST_RESOURCES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.pb.h"

namespace berth::cli {

// The resource type of devices in CTest: RESOURCE_GROUPS "gpus:1".
inline constexpr char kCtestType[] = "gpus";

// Returns a device's name in CTest, which allows only lower-case letters, digits and "_": "gpu_8c9a" for "GPU-8c9a".
std::string CtestId(absl::string_view uuid);

// Returns the specification of the devices that serve the pool. Each device has the same number of slots, so that
// together they have at least the pool's cap, but at most the pool's cap on that device. Errors: kFailedPrecondition if
// no device serves the pool.
absl::StatusOr<std::string> MakeCtestSpec(const v1::ListDevicesResponse& devices, const v1::Pool& pool);

// Slots by device name, over all groups of a test. Excludes resources of other types.
using CtestSlots = std::map<std::string, uint64_t>;

// Returns the slots that CTest gave to the test whose environment `variable` reads. Returns nothing if CTest has no
// specification, or the test requests no slots. Errors: kInvalidArgument naming the variable.
absl::StatusOr<std::optional<CtestSlots>> ReadCtestSlots(
    const std::function<std::optional<std::string>(const std::string&)>& variable);

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_CTEST_RESOURCES_H_
