#include "daemon/service/audit/audit_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "daemon/base/private_folder.h"
#include "daemon/service/audit/open_error.h"

namespace berth::service {
namespace {

// Highest number of a file that may exist: an earlier version left up to four files.
constexpr int kOldest = 3;
constexpr char kCompacting[] = "/audit.compacting.jsonl";
// Size of the line about evictions, in bytes.
constexpr uint64_t kHeaderBytes = 256;
// A line's share ends within this many bytes of the line's start.
constexpr size_t kShareWithin = 256;
constexpr absl::string_view kOperators = "operators";
constexpr absl::string_view kAdmission = "admission ";
constexpr absl::string_view kEvicted = "evicted";
// Account of earlier versions' lines, which have no share.
constexpr core::RingKey kNobody = {.account = UINT32_MAX};

// Returns the text between `"name":"` and the next quote.
absl::string_view FieldOf(absl::string_view line, absl::string_view name) {
  line = line.substr(0, kShareWithin);
  const size_t at = line.find(name);
  if (at == absl::string_view::npos) return {};
  const absl::string_view rest = line.substr(at + name.size());
  return rest.substr(0, rest.find('"'));
}

absl::string_view TimeOf(absl::string_view line) { return FieldOf(line, R"("time":")"); }
absl::string_view ShareOf(absl::string_view line) { return FieldOf(line, R"("share":")"); }

core::RingKey ReadShare(absl::string_view share) {
  if (share == kOperators) return {.part = core::RingPart::kOperators};
  core::RingKey key;
  if (absl::ConsumePrefix(&share, kAdmission)) key.part = core::RingPart::kAdmission;
  return absl::SimpleAtoi(share, &key.account) ? key : kNobody;
}

absl::Time ReadTime(absl::string_view line, absl::Time otherwise) {
  absl::Time time = otherwise;
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, TimeOf(line), &time, &error)) return otherwise;
  return time;
}

// Number of evicted lines, and the time of the last of them.
struct Evicted {
  uint64_t lines = 0;
  std::string last;

  void Add(absl::string_view line, uint64_t count) {
    lines += count;
    // All times have the same format and length, so they compare as text.
    last = std::max(last, std::string(TimeOf(line)));
  }
  std::string Format() const {
    return absl::StrCat(R"({"time":")", last, R"(","share":"evicted","what":"evicted","outcome":"done","lines":")",
                        lines, "\",\"who\":\"daemon\"}\n");
  }
};

uint64_t EvictedBefore(absl::string_view line) {
  uint64_t lines = 0;
  return absl::SimpleAtoi(FieldOf(line, R"("lines":")"), &lines) ? lines : 0;
}

}  // namespace

std::string FormatShare(const core::RingKey& key) {
  if (key.part == core::RingPart::kOperators) return std::string(kOperators);
  return absl::StrCat(key.part == core::RingPart::kAdmission ? kAdmission : "", key.account);
}

AuditFiles::AuditFiles(std::string folder, Bytes size) : folder_(std::move(folder)), third_(size.count() / 3) {}

std::string AuditFiles::PathOf(int turn) const {
  return absl::StrCat(folder_, turn == 0 ? "/audit.jsonl" : absl::StrCat("/audit.", turn, ".jsonl"));
}

absl::StatusOr<UniqueFd> AuditFiles::OpenFile() const {
  if (::mkdir(folder_.c_str(), 0700) < 0 && errno != EEXIST) return OsError(folder_, errno);
  // O_NONBLOCK: an existing special file must not block the open.
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK;
  const std::string path = PathOf(0);
  UniqueFd file(::open(path.c_str(), kFlags, 0600));
  struct stat info;
  if (!file || ::fstat(file.get(), &info) < 0) return OpenError(path, path, errno);
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  BERTH_RETURN_IF_ERROR(CheckOwner(path));
  return file;
}

bool AuditFiles::Open() { return file_ || Reopen().ok(); }

absl::Status AuditFiles::Reopen() {
  BERTH_ASSIGN_OR_RETURN(UniqueFd file, OpenFile());
  struct stat info, earlier;
  if (::fstat(file.get(), &info) < 0) return OsError(PathOf(0), errno);
  const bool same = file_ && ::fstat(file_.get(), &earlier) == 0 && earlier.st_dev == info.st_dev &&
                    earlier.st_ino == info.st_ino;
  torn_ = torn_ && same;
  file_ = std::move(file);
  file_size_ = static_cast<uint64_t>(info.st_size);
  ReadReach();
  return absl::OkStatus();
}

bool AuditFiles::Write(absl::string_view line) {
  if (!file_) {
    const absl::Status opened = Reopen();
    if (!opened.ok()) {
      fault_.Report(PathOf(0), opened);
      return false;
    }
  }
  if (file_size_ > 0 && file_size_ + line.size() + 1 > third_ && (!Compact() || !Open())) return false;
  std::string text(torn_ ? "\n" : "");
  text.append(line.data(), line.size());
  const ssize_t written = ::write(file_.get(), text.data(), text.size());
  if (written < 0) fault_.Report(PathOf(0), OsError("write", errno));
  if (written > 0) file_size_ += static_cast<uint64_t>(written);
  if (written == static_cast<ssize_t>(text.size())) {
    torn_ = false;
    fault_.Report(PathOf(0), absl::OkStatus());
    if (reach_.oldest == absl::InfiniteFuture()) reach_.oldest = ReadTime(line, reach_.oldest);
    return true;
  }
  // A full disk took a part of the line, which must not run into the next line.
  torn_ = torn_ || written > 0;
  return false;
}

bool AuditFiles::Compact() {
  const absl::Time now = SteadyNow();
  if (now < retry_at_) return false;
  const std::string path = folder_ + kCompacting;
  if (!WriteCompacted(path) || ::rename(path.c_str(), PathOf(1).c_str()) < 0) {
    ::unlink(path.c_str());
    retry_at_ = now + kRetryPause;
    return false;
  }
  for (const int turn : {0, 2, 3}) ::unlink(PathOf(turn).c_str());
  file_.reset();
  return true;
}

bool AuditFiles::WriteCompacted(const std::string& path) const {
  std::map<core::RingKey, uint64_t> held;
  Evicted evicted;
  std::string line;
  for (int turn = kOldest; turn >= 0; --turn) {
    std::ifstream file(PathOf(turn));
    while (std::getline(file, line)) {
      if (ShareOf(line) == kEvicted) {
        evicted.Add(line, EvictedBefore(line));
      } else {
        held[ReadShare(ShareOf(line))] += line.size() + 1;
      }
    }
  }
  std::map<core::RingKey, uint64_t> excess;
  bool evicts = evicted.lines > 0;
  for (const auto& [key, limit] : core::LimitRing(third_ - std::min(third_, kHeaderBytes), held)) {
    excess[key] = held.at(key) - limit;
    evicts = evicts || excess[key] > 0;
  }
  // Readable for the daemon's user alone. Another user might have the file of an earlier attempt open.
  ::unlink(path.c_str());
  const UniqueFd made(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  std::ofstream out(absl::StrCat("/proc/self/fd/", made.get()));
  if (!made || !out) return false;
  // Reserves the first line, which is filled in at the end.
  std::string header(kHeaderBytes - 1, ' ');
  if (evicts) out << header << '\n';
  for (int turn = kOldest; turn >= 0; --turn) {
    std::ifstream file(PathOf(turn));
    while (std::getline(file, line)) {
      if (ShareOf(line) == kEvicted) continue;
      uint64_t& left = excess[ReadShare(ShareOf(line))];
      if (left == 0) {
        out << line << '\n';
        continue;
      }
      left -= std::min<uint64_t>(left, line.size() + 1);
      evicted.Add(line, 1);
    }
  }
  const std::string text = evicted.Format();
  std::copy(text.begin(), text.end() - 1, header.begin());
  if (evicts) out.seekp(0) << header;
  out.close();
  return out.good();
}

void AuditFiles::ReadReach() {
  reach_ = {};
  for (int turn = kOldest; turn >= 0 && reach_.oldest == absl::InfiniteFuture(); --turn) {
    std::ifstream file(PathOf(turn));
    std::string line;
    while (reach_.oldest == absl::InfiniteFuture() && std::getline(file, line)) {
      if (ShareOf(line) == kEvicted) {
        reach_.complete_since = ReadTime(line, reach_.complete_since);
      } else {
        reach_.oldest = ReadTime(line, reach_.oldest);
      }
    }
  }
}

}  // namespace berth::service
