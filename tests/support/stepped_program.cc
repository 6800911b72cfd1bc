#include "tests/support/stepped_program.h"

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// The signal by which the kernel reports a stop at a system call (PTRACE_O_TRACESYSGOOD).
constexpr int kAtSystemCall = SIGTRAP | 0x80;

}  // namespace

SteppedProgram::SteppedProgram(SubprocessOptions options) : process_(Subprocess::Start(Traced(std::move(options)))) {
  // Stops when it has become the program.
  int status = 0;
  if (::waitpid(process_.pid(), &status, __WALL) < 0 || !WIFSTOPPED(status) ||
      ::ptrace(PTRACE_SETOPTIONS, process_.pid(), nullptr, PTRACE_O_TRACESYSGOOD) < 0) {
    Fatal(OsError("ptrace", errno), "a traced program");
  }
}

bool SteppedProgram::Step() {
  int signal = 0;
  while (true) {
    if (::ptrace(PTRACE_SYSCALL, process_.pid(), nullptr, signal) < 0) return false;
    siginfo_t info = {};
    // Subprocess reads the end.
    ::waitid(P_PID, static_cast<id_t>(process_.pid()), &info, WSTOPPED | WEXITED | WNOWAIT | __WALL);
    if (info.si_code != CLD_TRAPPED) return false;
    int status = 0;
    ::waitpid(process_.pid(), &status, __WALL);
    if (WSTOPSIG(status) == kAtSystemCall) return true;
    // A signal of its own, such as SIGCHLD.
    signal = WSTOPSIG(status);
  }
}

bool SteppedProgram::Enters(long number, const std::string& path) const {
  __ptrace_syscall_info info = {};
  const long size = ::ptrace(PTRACE_GET_SYSCALL_INFO, process_.pid(), sizeof(info), &info);
  if (size <= 0 || info.op != PTRACE_SYSCALL_INFO_ENTRY) return false;
  if (info.entry.nr != static_cast<uint64_t>(number)) return false;
  if (path.empty()) return true;
  std::error_code error;
  const auto file = std::filesystem::read_symlink(
      absl::StrCat("/proc/", process_.pid(), "/fd/", info.entry.args[0]), error);
  return file == std::filesystem::canonical(path, error);
}

bool SteppedProgram::Blocks(int signal) const {
  std::ifstream status(absl::StrCat("/proc/", process_.pid(), "/status"));
  uint64_t set = 0;
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "SigBlk:")) (void)absl::SimpleHexAtoi(line.substr(8), &set);
  }
  return (set >> (signal - 1) & 1) != 0;
}

void SteppedProgram::LetGo(int signal) {
  if (signal != 0) process_.Signal(signal);
  ::ptrace(PTRACE_DETACH, process_.pid(), nullptr, 0);
}

SubprocessOptions SteppedProgram::Traced(SubprocessOptions options) {
  const std::vector<std::string> program =
      std::exchange(options.argv, {ProgramPath("tests/runners/signal_probe"), "traced"});
  options.argv.insert(options.argv.end(), program.begin(), program.end());
  return options;
}

}  // namespace berth::testing
