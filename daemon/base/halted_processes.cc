#include "daemon/base/halted_processes.h"

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/file_io.h"
#include "common/os/proc_file.h"
#include "common/os/process_state.h"
#include "common/os/unique_fd.h"

namespace berth {
namespace {

// Whether the freezer is among the controllers, or mount options, that commas separate.
bool HasFreezer(absl::string_view list) {
  const std::vector<absl::string_view> names = absl::StrSplit(list, ',');
  return std::find(names.begin(), names.end(), "freezer") != names.end();
}

// Hierarchies are mounted when the system starts.
const std::vector<FreezerMount>& Freezers() {
  static const auto* const kFreezers = [] {
    const UniqueFd file(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC));
    return new std::vector<FreezerMount>(
        file ? FindFreezers(ReadToEnd(file.get(), "mountinfo").value_or("")) : std::vector<FreezerMount>());
  }();
  return *kFreezers;
}

}  // namespace

std::vector<FreezerMount> FindFreezers(absl::string_view mountinfo) {
  std::vector<FreezerMount> freezers;
  for (const absl::string_view line : absl::StrSplit(mountinfo, '\n', absl::SkipEmpty())) {
    // Such as: 38 31 0:35 / /sys/fs/cgroup/freezer rw,relatime shared:9 - cgroup cgroup rw,freezer
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    const std::vector<absl::string_view> where = absl::StrSplit(parts.first, ' ');
    const std::vector<absl::string_view> what = absl::StrSplit(parts.second, ' ');
    // A path with an odd character is escaped; no cgroup is mounted there.
    if (where.size() < 5 || what.size() < 3 || absl::StrContains(where[4], '\\')) continue;
    const bool unified = what[0] == "cgroup2";
    if (!unified && (what[0] != "cgroup" || !HasFreezer(what[2]))) continue;
    freezers.push_back({.unified = unified, .root = std::string(where[3]), .folder = std::string(where[4])});
  }
  return freezers;
}

std::vector<std::string> FreezerFilesOf(absl::string_view cgroups, const std::vector<FreezerMount>& freezers) {
  std::vector<std::string> files;
  for (const absl::string_view line : absl::StrSplit(cgroups, '\n', absl::SkipEmpty())) {
    // Such as: 6:freezer:/a/b, or 0::/a/b for the unified hierarchy. The path may contain colons.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() < 3 || absl::StartsWith(fields[2], "/..")) continue;
    const bool unified = fields[0] == "0" && fields[1].empty();
    if (!unified && !HasFreezer(fields[1])) continue;
    for (const FreezerMount& freezer : freezers) {
      absl::string_view below = fields[2];
      if (freezer.unified != unified) continue;
      if (!absl::ConsumePrefix(&below, absl::StripSuffix(freezer.root, "/"))) continue;
      if (!below.empty() && below[0] != '/') continue;
      files.push_back(absl::StrCat(freezer.folder, absl::StripSuffix(below, "/"),
                                   unified ? "/cgroup.events" : "/freezer.state"));
      break;
    }
  }
  return files;
}

bool ReportsFrozen(absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line == "frozen 1" || line == "FROZEN" || line == "FREEZING") return true;
  }
  return false;
}

HaltedProcesses::HaltedProcesses() : freezers_(Freezers()) {}

bool HaltedProcesses::Has(int32_t pid) { return IsStopped(pid) || IsFrozen(pid); }

bool HaltedProcesses::IsFrozen(int32_t pid) {
  if (pid <= 0 || freezers_.empty()) return false;
  const absl::StatusOr<std::string> cgroups = ReadProcFile(absl::StrCat("/proc/", pid, "/cgroup"));
  if (!cgroups.ok() || cgroups->empty()) return false;
  const auto [at, fresh] = frozen_.try_emplace(*cgroups, false);
  if (!fresh) return at->second;
  for (const std::string& file : FreezerFilesOf(*cgroups, freezers_)) {
    const absl::StatusOr<std::string> state = ReadProcFile(file);
    if (state.ok() && ReportsFrozen(*state)) at->second = true;
  }
  return at->second;
}

}  // namespace berth
