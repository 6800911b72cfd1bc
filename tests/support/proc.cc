#include "tests/support/proc.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace berth::testing {
namespace {

std::vector<std::string> ListFolder(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (folder == nullptr) return names;
  while (const dirent* const entry = ::readdir(folder.get())) {
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  }
  return names;
}

std::string TargetOf(const std::string& link) {
  char target[256];
  const ssize_t size = ::readlink(link.c_str(), target, sizeof(target));
  return std::string(target, size > 0 ? static_cast<size_t>(size) : 0);
}

struct Stat {
  std::string name;
  char state = 0;
  pid_t parent = 0;
};

std::optional<Stat> ReadStat(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  // "pid (name) state ppid …"; the name may contain any character.
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return std::nullopt;
  Stat stat = {.name = text.substr(open + 1, close - open - 1)};
  std::istringstream rest(text.substr(close + 1));
  rest >> stat.state >> stat.parent;
  return stat;
}

}  // namespace

std::vector<ChildInfo> ProcessesWith(const std::string& program, const std::string& argument) {
  std::vector<ChildInfo> processes;
  for (const std::string& name : ListFolder("/proc")) {
    pid_t pid;
    if (!absl::SimpleAtoi(name, &pid)) continue;
    // Empty for a zombie. Reading fails where the process ends meanwhile; an iterator of the file would throw then.
    const std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
    std::ostringstream text;
    text << file.rdbuf();
    const std::vector<std::string> words = absl::StrSplit(text.str(), '\0');
    if (words[0] != program || std::find(words.begin(), words.end(), argument) == words.end()) continue;
    if (const std::optional<Stat> stat = ReadStat(pid)) processes.push_back({.pid = pid, .name = stat->name});
  }
  std::sort(processes.begin(), processes.end(),
            [](const ChildInfo& a, const ChildInfo& b) { return a.pid < b.pid; });
  return processes;
}

std::vector<ChildInfo> ChildrenOf(pid_t pid) {
  std::vector<ChildInfo> children;
  for (const std::string& name : ListFolder("/proc")) {
    pid_t candidate;
    if (!absl::SimpleAtoi(name, &candidate)) continue;
    const std::optional<Stat> stat = ReadStat(candidate);
    if (stat.has_value() && stat->parent == pid && stat->state != 'Z')
      children.push_back({candidate, stat->name});
  }
  std::sort(children.begin(), children.end(), [](const auto& a, const auto& b) { return a.pid < b.pid; });
  return children;
}

size_t CountFds(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  size_t count = 0;
  for (const std::string& name : ListFolder(folder)) {
    const std::string what = TargetOf(absl::StrCat(folder, "/", name));
    const bool waits = what == "anon_inode:[eventfd]" || what == "anon_inode:[eventpoll]";
    count += waits || what.rfind("/dev/nvidia", 0) == 0 ? 0 : 1;
  }
  return count;
}

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/statm"));
  uint64_t size = 0;
  uint64_t resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string DescribeFds(pid_t pid) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  std::map<std::string, int> counts;
  for (const std::string& name : ListFolder(folder)) {
    std::string what = TargetOf(absl::StrCat(folder, "/", name));
    // Sockets differ only in their numbers.
    if (what.rfind("socket:", 0) == 0) what = "socket";
    ++counts[what];
  }
  std::string text;
  for (const auto& [what, count] : counts) absl::StrAppend(&text, "    ", count, " x ", what, "\n");
  return text;
}

size_t CountConnections(const std::string& path) {
  constexpr absl::string_view kConnected = "03";
  std::ifstream file("/proc/net/unix");
  size_t count = 0;
  for (std::string line; std::getline(file, line);) {
    // Num RefCount Protocol Flags Type State Inode Path; the connecting end has no path.
    const std::vector<std::string> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (columns.size() == 8 && columns[5] == kConnected && columns[7] == path) ++count;
  }
  return count;
}

bool IsAlive(pid_t pid) {
  const char state = StateOf(pid);
  return state != 0 && state != 'Z';
}

char StateOf(pid_t pid) {
  const std::optional<Stat> stat = ReadStat(pid);
  return stat.has_value() ? stat->state : '\0';
}

bool IsPending(pid_t pid, int signal) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  uint64_t set = 0;
  for (std::string line; std::getline(status, line);) {
    absl::string_view digits = line;
    if (absl::ConsumePrefix(&digits, "ShdPnd:\t")) (void)absl::SimpleHexAtoi(digits, &set);
  }
  return (set >> (signal - 1) & 1) != 0;
}

}  // namespace berth::testing
