// The table of signals that the tests of signals share, and a job of a shell with job control on its own terminal.

#ifndef TESTS_RUNNERS_SIGNAL_JOB_H_
#define TESTS_RUNNERS_SIGNAL_JOB_H_

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/os/unique_fd.h"
#include "tests/support/subprocess.h"

namespace berth::testing {

using Words = std::vector<std::string>;

struct Signal {
  int number;
  const char* name;
  // The key for which the terminal sends it; 0 for none.
  char key = 0;
};
inline constexpr Signal kSignals[] = {
    {SIGHUP, "HUP"},   {SIGINT, "INT", '\x03'},   {SIGQUIT, "QUIT", '\x1c'}, {SIGTERM, "TERM"}, {SIGUSR1, "USR1"},
    {SIGUSR2, "USR2"}, {SIGTSTP, "TSTP", '\x1a'}, {SIGTTIN, "TTIN"},         {SIGTTOU, "TTOU"}, {SIGCONT, "CONT"},
    {SIGCHLD, "CHLD"}, {SIGPIPE, "PIPE"},         {SIGALRM, "ALRM"}};
enum Target { kWrapper, kGroup, kTerminal, kChild };
inline constexpr const char* kTargets[] = {"wrapper", "group", "terminal", "child"};
enum Disposition { kDefault, kIgnored, kBlocked };
inline constexpr const char* kDispositions[] = {"default", "ignored", "blocked"};
enum State { kWaiting, kRunning, kStopped };
inline constexpr const char* kStates[] = {"waiting", "running", "stopped"};
enum Mode { kCommand, kTree, kExec, kCgroup, kCtestRun, kHolder };
inline constexpr const char* kModes[] = {"command", "tree", "exec", "cgroup", "ctest-run", "holder"};
// Whether the command handles the signal, or leaves its disposition unchanged.
inline constexpr const char* kHandles[] = {"plain", "handles"};

// Indices of: signal, target, disposition, state, mode, whether the command handles it.
using Cell = std::array<int, 6>;
inline constexpr Cell kSizes = {std::size(kSignals), 4, 3, 3, 6, 2};

inline const Signal& SignalOf(const Cell& cell) { return kSignals[cell[0]]; }
inline bool Handles(const Cell& cell) { return cell[5] == 1; }
// Whether the terminal sends the signal because the command uses it in the background.
inline bool UsesTerminal(const Cell& cell) {
  return cell[1] == kTerminal && (SignalOf(cell).number == SIGTTIN || SignalOf(cell).number == SIGTTOU);
}

std::string NameOf(const Cell& cell);
// Names the values of two dimensions of a cell.
std::string NameOf(const Cell& cell, size_t a, size_t b);

// A job of a shell on a terminal. Only the constructing thread may use it.
class Job {
 public:
  Job(const Cell& cell, const Words& command, const std::vector<std::string>& environment, bool of_operator = false);
  ~Job();

  pid_t pid() const { return pid_; }
  pid_t command() const { return command_; }
  const Words& last() const { return last_; }
  // Lines of the probe, without process numbers and without "continued": a shell may see the end at once.
  const Words& said() const { return said_; }
  bool over() const { return over_; }

  // Reads until one of these lines, or the end of the job. Returns whether one of these lines came.
  bool Read(const std::set<std::string>& wanted);
  void ReadToEnd() { Read({}); }

  // Sends the cell's signal to its target. From the terminal it comes by a key, by the terminal's hang-up, or by the
  // command's use of the terminal in the background.
  void Deliver();
  void Send(int signal, Target target) const;
  // Whether wrapper and command run.
  bool IsAwake();
  // Ends the command, and returns the last line.
  std::string End();
  // Waits until the terminal has sent its signal, after which the terminal shows "^C".
  void Press(char key);
  // Hangs the terminal up: the kernel sends SIGHUP and SIGCONT to the job in the foreground.
  void HangUp();
  // Continues the job, as `fg` does.
  void GoOn();

 private:
  // Has the shell move the job to the background or the foreground of the terminal.
  void Move(bool to_foreground);

  const Cell cell_;
  UniqueFd master_;
  std::optional<Subprocess> shell_;
  pid_t pid_ = 0;
  pid_t command_ = 0;
  Words last_;
  Words said_;
  bool over_ = false;
};

}  // namespace berth::testing

#endif  // TESTS_RUNNERS_SIGNAL_JOB_H_
