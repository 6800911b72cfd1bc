#include "daemon/base/halted_processes.h"

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
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

constexpr absl::string_view kOldFreezer = "__refrigerator";
// A process may have thousands.
constexpr size_t kMostThreads = 32;

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

// The function of the kernel in which a process or thread waits; empty where the kernel does not name it.
std::string WaitingPlace(const std::string& folder) { return ReadProcFile(folder + "/wchan").value_or(""); }

// Whether the process waits in the kernel's freezer.
bool WaitsInFreezer(int32_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid);
  const std::string place = WaitingPlace(folder);
  // The first two are of the unified hierarchy. A compiler makes one function of them; nothing else waits in it.
  if (place == "do_freezer_trap" || place == "get_signal" || place == kOldFreezer) return true;
  // The freezer of cgroup v1 leaves some threads where they sleep. Such a thread is in state D.
  if (ReadState(pid) != 'D') return false;
  std::error_code error;
  std::filesystem::directory_iterator thread(folder + "/task", error);
  for (size_t left = kMostThreads; !error && thread != std::filesystem::directory_iterator() && left > 0; --left) {
    if (WaitingPlace(thread->path()) == kOldFreezer) return true;
    thread.increment(error);
  }
  return false;
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

FreezerFiles FreezerFilesOf(absl::string_view cgroups, const std::vector<FreezerMount>& freezers) {
  FreezerFiles files;
  for (const absl::string_view line : absl::StrSplit(cgroups, '\n', absl::SkipEmpty())) {
    // Such as: 6:freezer:/a/b, or 0::/a/b for the unified hierarchy. The path may contain colons.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() < 3) continue;
    const bool unified = fields[0] == "0" && fields[1].empty();
    if (!unified && !HasFreezer(fields[1])) continue;
    bool found = false;
    for (const FreezerMount& freezer : freezers) {
      absl::string_view below = fields[2];
      if (freezer.unified != unified) continue;
      if (!absl::ConsumePrefix(&below, absl::StripSuffix(freezer.root, "/"))) continue;
      // Both paths begin with "/.." where they are outside of this process's cgroup namespace.
      if ((!below.empty() && below[0] != '/') || absl::StartsWith(below, "/..")) continue;
      files.paths.push_back(absl::StrCat(freezer.folder, absl::StripSuffix(below, "/"),
                                         unified ? "/cgroup.events" : "/freezer.state"));
      found = true;
      break;
    }
    if (!found) files.incomplete = true;
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
  if (pid <= 0) return false;
  const absl::StatusOr<std::string> cgroups = ReadProcFile(absl::StrCat("/proc/", pid, "/cgroup"));
  if (!cgroups.ok() || cgroups->empty()) return false;
  const auto [at, fresh] = states_.try_emplace(*cgroups);
  if (fresh) {
    const FreezerFiles files = FreezerFilesOf(*cgroups, freezers_);
    at->second.incomplete = files.incomplete;
    for (const std::string& path : files.paths) {
      const absl::StatusOr<std::string> state = ReadProcFile(path);
      if (state.ok() && ReportsFrozen(*state)) at->second.frozen = true;
    }
  }
  return at->second.frozen || (at->second.incomplete && WaitsInFreezer(pid));
}

}  // namespace berth
