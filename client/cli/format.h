// The daemon's figures as people and programs read them.

#ifndef CLIENT_CLI_FORMAT_H_
#define CLIENT_CLI_FORMAT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message.h"
#include "google/protobuf/timestamp.pb.h"

namespace berth::cli {

// Its two largest units: "0s", "42s", "3m12s", "2h05m", "3d04h". A negative duration, which clocks can make,
// is "0s".
std::string FormatAge(absl::Duration age);
// How long ago `time` was.
std::string FormatSince(const google::protobuf::Timestamp& time, absl::Time now);
std::string FormatDuration(const google::protobuf::Duration& duration);

// "1000", "1000@/docker/…".
std::string FormatTenant(const v1::Tenant& tenant);
// Reads it again: UID, or UID:CONTAINER. Errors: kInvalidArgument naming the text.
absl::StatusOr<v1::Tenant> ParseTenant(absl::string_view text);
// "train(4711)"; the pid alone where the name is not known.
std::string FormatProcess(const v1::Process& process);
// "256 MiB".
std::string FormatCount(uint64_t bytes);
// What clients have made the broker do to stay within its bounds, a line each; empty where it had to do nothing.
std::string FormatPressure(const v1::Pressure& pressure);
// "CUDA_IPC".
std::string FormatExportKind(v1::ExportKind kind);

// Reads "90", "90s", "1m30s", "2h": a bare number is seconds.
// Errors: kInvalidArgument naming the text; a negative or endless duration too.
absl::StatusOr<absl::Duration> ParseWait(absl::string_view text);

// Reads how many, decimal. Errors: kInvalidArgument naming the text; 0 too.
absl::StatusOr<uint64_t> ParseCount(absl::string_view text);

// Reads a compute capability: 90 for "9.0". Errors: kInvalidArgument naming the text.
absl::StatusOr<uint32_t> ParseCapability(absl::string_view text);
// "9.0".
std::string FormatCapability(uint32_t capability);

// Reads an id as it is printed, decimal; hexadecimal after "0x" too. Errors: kInvalidArgument naming the
// text; 0 too.
absl::StatusOr<uint64_t> ParseId(absl::string_view text);

// For programs: protobuf's JSON with the fields' own names and every field present; 64-bit numbers are
// strings, as protobuf's JSON has them.
// Errors: kInternal for a message that JSON has no form of, as a time past the year 9999.
absl::StatusOr<std::string> FormatJson(const google::protobuf::Message& message);
// The same on one line, with its end.
absl::StatusOr<std::string> FormatJsonLine(const google::protobuf::Message& message);
// An object of several messages.
absl::StatusOr<std::string> FormatJson(
    const std::vector<std::pair<std::string, const google::protobuf::Message*>>& members);

}  // namespace berth::cli

#endif  // CLIENT_CLI_FORMAT_H_
