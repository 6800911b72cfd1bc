// CTest's resources: what `berth ctest-spec` offers it, and what it has given a test, as CTest's own manual has it
// (RESOURCE_SPEC_FILE; the environment variables CTEST_RESOURCE_GROUP_…).

#ifndef CLIENT_CLI_CTEST_RESOURCES_H_
#define CLIENT_CLI_CTEST_RESOURCES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "berth/v1/device.pb.h"

namespace berth::cli {

// The type that devices are in CTest: RESOURCE_GROUPS "gpus:1".
inline constexpr char kCtestType[] = "gpus";

// A device's name in CTest, which allows small letters, digits and "_" alone: "gpu_8c9a…" of "GPU-8c9a…".
std::string CtestId(absl::string_view uuid);

// The specification for devices that serve, with so many slots together that they are at least `cap`, the same for
// each. Errors: kFailedPrecondition where no device serves.
absl::StatusOr<std::string> MakeCtestSpec(const v1::ListDevicesResponse& devices, uint64_t cap);

// Slots by device name, over all groups of a test. Resources of other types are not Berth's.
using CtestSlots = std::map<std::string, uint64_t>;

// What CTest gave the test whose environment `variable` reads; nothing where CTest was given no specification, or the
// test wants none. Errors: kInvalidArgument naming the variable.
absl::StatusOr<std::optional<CtestSlots>> ReadCtestSlots(
    const std::function<std::optional<std::string>(const std::string&)>& variable);

}  // namespace berth::cli

#endif  // CLIENT_CLI_CTEST_RESOURCES_H_
