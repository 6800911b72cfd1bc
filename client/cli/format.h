// Formats the daemon's values for people and programs.

#ifndef CLIENT_CLI_FORMAT_H_
#define CLIENT_CLI_FORMAT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace google::protobuf {
class Duration;
class Message;
class Timestamp;
}  // namespace google::protobuf

namespace berth::v1 {
class Pressure;
class Process;
class Tenant;
enum ExportKind : int;
}  // namespace berth::v1

namespace berth::cli {

// Formats the two largest units: "0s", "42s", "3m12s", "2h05m", "3d04h". A negative duration, which clock differences
// can produce, is "0s".
std::string FormatAge(absl::Duration age);
// Formats a moment in `zone`, with the zone: "2026-03-01 10:00:00+01:00". ParseMoment() reads it.
std::string FormatMoment(absl::Time time, absl::TimeZone zone);
// Parses a moment: a duration before `now` (2h, 1d), "today", a date, a date and a time of day, or "@" and the seconds
// since 1970. A time of day without a zone is in `zone`. Errors: kInvalidArgument naming the text.
absl::StatusOr<absl::Time> ParseMoment(absl::string_view text, absl::Time now, absl::TimeZone zone);
// As ParseMoment(), but returns the last of the moments that FormatMoment() formats so: the end of a whole second.
absl::StatusOr<absl::Time> ParseLastMoment(absl::string_view text, absl::Time now, absl::TimeZone zone);
std::string FormatSince(const google::protobuf::Timestamp& time, absl::Time now);
std::string FormatDuration(const google::protobuf::Duration& duration);

// "1000", "1000@/docker/…".
std::string FormatTenant(const v1::Tenant& tenant);
// Parses a user's name or uid; digits are a uid. Errors: kInvalidArgument naming the text.
absl::StatusOr<uint32_t> ParseUser(absl::string_view text);
// Parses USER or USER:CONTAINER, with a user as of ParseUser(). Errors: kInvalidArgument naming the text.
absl::StatusOr<v1::Tenant> ParseTenant(absl::string_view text);
// "train(4711)"; only the pid if the name is unknown.
std::string FormatProcess(const v1::Process& process);
// "256 MiB".
std::string FormatCount(uint64_t bytes);
// Formats the actions that kept the broker within its bounds, one per line; empty if it took none.
std::string FormatPressure(const v1::Pressure& pressure);
// "CUDA_IPC".
std::string FormatExportKind(v1::ExportKind kind);

// Parses a decimal count. Errors: kInvalidArgument naming the text, also for 0.
absl::StatusOr<uint64_t> ParseCount(absl::string_view text);

// Parses a compute capability: 90 for "9.0". Errors: kInvalidArgument naming the text.
absl::StatusOr<uint32_t> ParseCapability(absl::string_view text);
// "9.0".
std::string FormatCapability(uint32_t capability);

// Parses a decimal id, the form in which ids are printed (docs/design/0039). Errors: kInvalidArgument naming the text,
// also for 0.
absl::StatusOr<uint64_t> ParseId(absl::string_view text);

// For programs: protobuf's JSON with the original field names and every field present; 64-bit numbers are strings, as
// usual in protobuf's JSON.
// Errors: kInternal for a message that JSON cannot represent, for example a time after the year 9999.
absl::StatusOr<std::string> FormatJson(const google::protobuf::Message& message);
// As above, on one line including its newline.
absl::StatusOr<std::string> FormatJsonLine(const google::protobuf::Message& message);
// Returns a JSON object with several messages as members.
absl::StatusOr<std::string> FormatJson(
    const std::vector<std::pair<std::string, const google::protobuf::Message*>>& members);

}  // namespace berth::cli

#endif  // CLIENT_CLI_FORMAT_H_
