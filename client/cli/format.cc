#include "client/cli/format.h"

#include <pwd.h>

#include <algorithm>

#include <berth/bytes.h>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/table.h"
#include "common/status_macros.h"
#include "common/terminal_text.h"
#include "common/time_span.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message.h"
#include "google/protobuf/timestamp.pb.h"
#include "google/protobuf/util/json_util.h"

namespace berth::cli {
namespace {

// Returns the width in code points: labels are UTF-8, and continuation bytes take no space.
size_t WidthOf(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

absl::string_view Shown(const std::string& cell) { return cell.empty() ? "-" : absl::string_view(cell); }

}  // namespace

std::string FormatAge(absl::Duration age) {
  const int64_t seconds = std::max<int64_t>(absl::ToInt64Seconds(age), 0);
  const int64_t minutes = seconds / 60;
  const int64_t hours = minutes / 60;
  if (minutes == 0) return absl::StrCat(seconds, "s");
  if (hours == 0) return absl::StrFormat("%dm%02ds", minutes, seconds % 60);
  if (hours < 24) return absl::StrFormat("%dh%02dm", hours, minutes % 60);
  return absl::StrFormat("%dd%02dh", hours / 24, hours % 24);
}

std::string FormatSince(const google::protobuf::Timestamp& time, absl::Time now) {
  return FormatAge(now - (absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos())));
}

std::string FormatDuration(const google::protobuf::Duration& duration) {
  return FormatAge(absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos()));
}

std::string FormatTenant(const v1::Tenant& tenant) {
  return tenant.container().empty() ? absl::StrCat(tenant.uid())
                                    : absl::StrCat(tenant.uid(), "@", tenant.container());
}

absl::StatusOr<uint32_t> ParseUser(absl::string_view text) {
  uint32_t uid = 0;
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
  if (digits && absl::SimpleAtoi(text, &uid)) return uid;
  const passwd* const user = digits ? nullptr : ::getpwnam(std::string(text).c_str());
  if (user != nullptr) return user->pw_uid;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text.substr(0, 64), "\" is not a uid or the name of a user on this system"));
}

absl::StatusOr<v1::Tenant> ParseTenant(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  BERTH_ASSIGN_OR_RETURN(const uint32_t uid, ParseUser(parts.first));
  v1::Tenant tenant;
  tenant.set_uid(uid);
  tenant.set_container(std::string(parts.second));
  return tenant;
}

std::string FormatProcess(const v1::Process& process) {
  return process.name().empty() ? absl::StrCat(process.pid())
                                : absl::StrCat(process.name(), "(", process.pid(), ")");
}

std::string FormatExportKind(v1::ExportKind kind) {
  return std::string(absl::StripPrefix(v1::ExportKind_Name(kind), "EXPORT_KIND_"));
}

std::string FormatCount(uint64_t bytes) { return FormatBytes(Bytes(bytes)); }

std::string FormatPressure(const v1::Pressure& pressure) {
  std::string text;
  if (pressure.memory_restarts() > 0 || pressure.memory_bytes() > pressure.memory_bound_bytes()) {
    absl::StrAppend(&text, "\nThe broker uses ", FormatCount(pressure.memory_bytes()), " of memory, limit ",
                    FormatCount(pressure.memory_bound_bytes()), "; ", pressure.memory_restarts(),
                    " earlier brokers ended because they exceeded it\n");
  }
  if (pressure.ended_connections() > 0) {
    absl::StrAppend(&text, "\n", pressure.ended_connections(),
                    " connections were closed because their calls exceeded the rate limit\n");
  }
  if (pressure.refused_connections() > 0) {
    absl::StrAppend(&text, "\n", pressure.refused_connections(),
                    " connections were refused because they exceeded the rate limit of connections\n");
  }
  return text;
}

std::string FormatMoment(absl::Time time, absl::TimeZone zone) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S%Ez", time, zone);
}

absl::StatusOr<absl::Time> ParseLastMoment(absl::string_view text, absl::Time now, absl::TimeZone zone) {
  absl::StatusOr<absl::Time> moment = ParseMoment(text, now, zone);
  if (!moment.ok()) return moment;
  // A date, or a time of day without seconds, is the moment at which it begins.
  const absl::string_view time_of_day = text.substr(std::min(text.find_first_of(" T"), text.size()));
  const bool has_seconds = text[0] == '@' || std::count(time_of_day.begin(), time_of_day.end(), ':') >= 2;
  const bool is_whole = text.find('.') == absl::string_view::npos;
  if (has_seconds && is_whole) *moment += absl::Seconds(1) - absl::Nanoseconds(1);
  return moment;
}

absl::StatusOr<absl::Time> ParseMoment(absl::string_view text, absl::Time now, absl::TimeZone zone) {
  const absl::Time first_moment = absl::FromCivil(absl::CivilDay(1, 1, 1), absl::UTCTimeZone());
  // A larger number without a unit is a date without hyphens, or seconds since 1970 without the @.
  constexpr double kMaxBareSeconds = 9'999'999;
  constexpr absl::Duration kMaxAge = absl::Hours(24 * 365 * 100);
  double seconds_ago = 0;
  const bool too_long = absl::SimpleAtod(text, &seconds_ago) && seconds_ago > kMaxBareSeconds;
  const absl::StatusOr<absl::Duration> ago = ParseTimeSpan(text);
  if (ago.ok() && !too_long && *ago <= kMaxAge) return now - *ago;
  // The year 10000.
  constexpr double kMaxSeconds = 253402300800;
  if (text == "today") return absl::FromCivil(absl::ToCivilDay(now, zone), zone);
  absl::string_view seconds = text;
  double since_epoch = 0;
  if (absl::ConsumePrefix(&seconds, "@") && absl::SimpleAtod(seconds, &since_epoch) && since_epoch >= 0 &&
      since_epoch < kMaxSeconds) {
    return absl::UnixEpoch() + absl::Seconds(since_epoch);
  }
  // %Ez reads "Z", "+01:00" and "+0100".
  for (const char* const format :
       {"%E4Y-%m-%d", "%E4Y-%m-%d%ET%H:%M", "%E4Y-%m-%d %H:%M", "%E4Y-%m-%d%ET%H:%M:%E*S", "%E4Y-%m-%d %H:%M:%E*S",
        "%E4Y-%m-%d%ET%H:%M:%E*S%Ez", "%E4Y-%m-%d %H:%M:%E*S%Ez", "%E4Y-%m-%d %H:%M:%E*S %Ez"}) {
    absl::Time time;
    // abseil also reads "infinite-past", and the year 0, which a timestamp cannot have.
    const bool digit = !text.empty() && absl::ascii_isdigit(text[0]);
    if (digit && absl::ParseTime(format, text, zone, &time, nullptr) && time >= first_moment) return time;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text.substr(0, 64),
                   "\" is neither a duration such as 2h or 1d, nor a time such as today, 2026-03-01, "
                   "2026-03-01 10:00:00, 2026-03-01T10:00:00Z or @1772359200"));
}

absl::StatusOr<uint64_t> ParseCount(absl::string_view text) {
  uint64_t count = 0;
  if (!absl::SimpleAtoi(text, &count) || count == 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, 64), "\" is not a number from 1"));
  }
  return count;
}

absl::StatusOr<uint32_t> ParseCapability(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('.', 1));
  uint32_t major = 0, minor = 0;
  if (!absl::SimpleAtoi(parts.first, &major) || !absl::SimpleAtoi(parts.second, &minor) || major > 99 ||
      minor > 9) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a compute capability such as 9.0"));
  }
  return 10 * major + minor;
}

std::string FormatCapability(uint32_t capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

absl::StatusOr<uint64_t> ParseId(absl::string_view text) {
  uint64_t id = 0;
  if (!absl::c_all_of(text, absl::ascii_isdigit) || !absl::SimpleAtoi(text, &id) || id == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text.substr(0, 64), "\" is not an id: expected a decimal number"));
  }
  return id;
}

namespace {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message, bool whitespace) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = whitespace;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    return absl::InternalError(absl::StrCat("the daemon's ", message.GetTypeName(), " cannot be converted to JSON: ",
                                            absl::string_view(status.message().data(), status.message().size())));
  }
  return ToTerminalJson(json);
}

}  // namespace

absl::StatusOr<std::string> FormatJson(const google::protobuf::Message& message) {
  return ToJson(message, /*whitespace=*/true);
}

absl::StatusOr<std::string> FormatJsonLine(const google::protobuf::Message& message) {
  BERTH_ASSIGN_OR_RETURN(std::string json, ToJson(message, /*whitespace=*/false));
  return absl::StrCat(json, "\n");
}

absl::StatusOr<std::string> FormatJson(
    const std::vector<std::pair<std::string, const google::protobuf::Message*>>& members) {
  std::vector<std::string> texts;
  for (const auto& [name, message] : members) {
    BERTH_ASSIGN_OR_RETURN(const std::string json, FormatJson(*message));
    texts.push_back(absl::StrCat("\"", name, "\": ", absl::StripTrailingAsciiWhitespace(json)));
  }
  return absl::StrCat("{\n", absl::StrJoin(texts, ",\n"), "\n}\n");
}

// ---- table.h -------------------------------------------------------------------------------------------------

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = ToTerminalWord(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Format() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(WidthOf(column.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], WidthOf(Shown(row[i])));
  }
  std::string text;
  const auto append = [&](size_t i, absl::string_view cell, std::string* line) {
    const std::string padding(widths[i] - WidthOf(cell), ' ');
    if (i > 0) line->append("  ");
    columns_[i].align == Align::kRight ? absl::StrAppend(line, padding, cell)
                                       : absl::StrAppend(line, cell, padding);
  };
  const auto finish = [&](const std::string& line) {
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  };
  std::string titles;
  for (size_t i = 0; i < columns_.size(); ++i) append(i, columns_[i].title, &titles);
  finish(titles);
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) append(i, Shown(row[i]), &line);
    finish(line);
  }
  return text;
}

}  // namespace berth::cli
