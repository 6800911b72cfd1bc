#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/memory.pb.h"
#include "client/cli/format.h"
#include "client/cli/verbs.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Interval between two polls for new records.
constexpr absl::Duration kFollowPause = absl::Milliseconds(200);

// "import end, process gone".
std::string Words(const v1::LogRecord& record) {
  std::string words = v1::LogRecord::Action_Name(record.action());
  if (record.cause() == v1::LogRecord::LET_GO) {
    absl::StrAppend(&words, ", released");
  } else if (record.cause() != v1::LogRecord::CAUSE_UNSPECIFIED) {
    absl::StrAppend(&words, ", ", v1::LogRecord::Cause_Name(record.cause()));
  }
  return absl::AsciiStrToLower(absl::StrReplaceAll(words, {{"_", " "}}));
}

std::string Line(const v1::LogRecord& record) {
  const absl::Time time =
      absl::FromUnixSeconds(record.time().seconds()) + absl::Nanoseconds(record.time().nanos());
  std::string line =
      absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%E3S%Ez", time, absl::LocalTimeZone()), "  ", Words(record));
  if (record.block() != 0) absl::StrAppend(&line, "  block ", record.block());
  if (record.use() != 0) absl::StrAppend(&line, "  use ", record.use());
  if (record.access() != v1::LogRecord::ACCESS_UNSPECIFIED) {
    absl::StrAppend(&line, "  ", absl::AsciiStrToLower(v1::LogRecord::Access_Name(record.access())));
  }
  if (record.reservation() != 0) absl::StrAppend(&line, "  reservation ", record.reservation());
  absl::StrAppend(&line, "  device ", record.device(), "  ", FormatCount(record.bytes()));
  if (record.session() != 0) absl::StrAppend(&line, "  session ", record.session());
  absl::StrAppend(&line, "  tenant ", FormatTenant(record.tenant()));
  if (record.has_process()) absl::StrAppend(&line, "  process ", FormatProcess(record.process()));
  if (!record.label().empty()) absl::StrAppend(&line, "  \"", record.label(), "\"");
  if (!record.error().empty()) absl::StrAppend(&line, "  ", record.error(), ": ", record.message());
  return line + "\n";
}

// Warns a reader who may take the log file for complete.
std::string Unwritten(uint64_t records) {
  return absl::StrCat("berth log: ", records,
                      " records are missing from the log file: its disk was slow, or a write failed: the daemon's log "
                      "has the reason\n");
}

// Prints the records. Returns whether the reader is still there.
absl::StatusOr<bool> PrintRecords(const Globals& globals, const v1::ListLogRecordsResponse& answer) {
  for (const v1::LogRecord& record : answer.records()) {
    std::string line = Line(record);
    if (globals.json) {
      BERTH_ASSIGN_OR_RETURN(line, FormatJsonLine(record));
    }
    if (!Print(line)) return false;
  }
  return FlushOutput();
}

absl::Status Tail(const Globals& globals, const Inspector& inspector, bool follow) {
  std::string after;
  while (true) {
    BERTH_ASSIGN_OR_RETURN(const v1::ListLogRecordsResponse answer, inspector.ListLogRecords(after));
    BERTH_ASSIGN_OR_RETURN(const bool read, PrintRecords(globals, answer));
    if (!follow || !read) {
      if (answer.unwritten_total() > 0) PrintError(Unwritten(answer.unwritten_total()));
      return absl::OkStatus();
    }
    after = answer.follow_token();
    absl::SleepFor(kFollowPause);
  }
}

}  // namespace

void AddLog(Command app, const Globals& globals) {
  const Command verb =
      app.AddSubcommand("log", "Show the last memory events: allocations, imports, frees and releases");
  const auto follow = std::make_shared<bool>(false);
  verb.AddFlag("--follow", follow.get(), "Show further events as they happen");
  verb.Runs([&globals, follow] {
    return Look(globals, [&](const Inspector& inspector, Sight sight) {
      if (!globals.json) PrintError(LacksOthers(sight));
      if (!*follow) return Tail(globals, inspector, /*follow=*/false);
      return Follow(inspector, [&](const Inspector& followed) { return Tail(globals, followed, /*follow=*/true); });
    });
  });
}

}  // namespace berth::cli
