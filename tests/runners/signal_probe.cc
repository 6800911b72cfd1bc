// The two processes on either side of the command under test. One is a shell with job control that starts the command
// on a terminal and reports its observations. The other is the command that it finally runs, which reports its own.
//
//   signal_probe shell TERMINAL SIGNAL default|ignored|blocked COMMAND...
//       Prints "job PID", "stopped SIGNAL", "continued", "exited CODE" or "died SIGNAL". At a SIGRTMIN+3 it gives the
//       terminal up and prints "hung"; at a SIGRTMIN+4 it moves the job to the background of a terminal with `tostop`,
//       at a SIGRTMIN+5 to the foreground, and prints "moved".
//   signal_probe command SIGNAL handles|plain own-group|same-group
//       Prints "started PID BLOCKED IGNORED"; at a SIGRTMIN+1 "saw COUNT PENDING" of SIGNAL, and ends with 7; at a
//       SIGRTMIN+2 "awake COUNT", of the SIGNALs that its parent sent; at a SIGRTMIN+3 reads its terminal for SIGTTIN,
//       else writes to it, and prints "used ERROR".
//   signal_probe traced COMMAND...
//       Becomes the command, which its parent traces from its first instruction on.
//   signal_probe attributes ...
//       Prints the attributes that a process inherits, line by line.
//   signal_probe fds FD
//       Prints to FD its other fds; for a parent that is `berth`, also "berth NUMBER TARGET" of fds 0 to 2.
//   signal_probe terminal
//       Prints its controlling terminal's number, session, process group, and the terminal's foreground group.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <system_error>

namespace {

constexpr int kCodeOfCommand = 7;

volatile sig_atomic_t seen = 0;
volatile sig_atomic_t forwarded = 0;
volatile sig_atomic_t asked = 0;
volatile sig_atomic_t called = 0;
volatile sig_atomic_t uses = 0;
// The shell's terminal and job.
volatile sig_atomic_t shells_terminal = -1;
volatile sig_atomic_t shells_job = 0;

// Writes each line at once: two processes write into one pipe.
template <typename... Arguments>
void Say(const char* format, Arguments... arguments) {
  char line[128];
  const int length = snprintf(line, sizeof(line), format, arguments...);
  if (write(STDOUT_FILENO, line, static_cast<size_t>(length)) != length) _exit(1);
}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

// Prints the number of the error, or 0.
void UseTerminal(int signal) {
  const int tty = open("/dev/tty", O_RDWR | O_CLOEXEC);
  char byte = '\n';
  const ssize_t done = signal == SIGTTIN ? read(tty, &byte, 1) : write(tty, &byte, 1);
  Say("used %d\n", done == 1 ? 0 : errno);
  close(tty);
}

// Async-signal-safe.
void Report(const char* line) {
  if (write(STDOUT_FILENO, line, strlen(line)) < 0) _exit(1);
}

void MoveJob(pid_t foreground, bool stops_writers) {
  termios settings;
  tcgetattr(shells_terminal, &settings);
  if (stops_writers) settings.c_lflag |= TOSTOP;
  tcsetattr(shells_terminal, TCSANOW, &settings);
  tcsetpgrp(shells_terminal, foreground);
  Report("moved\n");
}

int Command(int signal, bool handles) {
  sigset_t original;
  sigprocmask(SIG_SETMASK, nullptr, &original);
  sigset_t marker;
  sigemptyset(&marker);
  sigaddset(&marker, SIGRTMIN + 1);
  sigaddset(&marker, SIGRTMIN + 2);
  sigaddset(&marker, SIGRTMIN + 3);
  sigprocmask(SIG_BLOCK, &marker, nullptr);
  Handle(SIGRTMIN + 1, [](int) { asked = 1; });
  Handle(SIGRTMIN + 2, [](int) { called = 1; });
  Handle(SIGRTMIN + 3, [](int) { uses = 1; });
  struct sigaction before;
  sigaction(signal, nullptr, &before);
  if (handles) {
    struct sigaction counting = {};
    counting.sa_flags = SA_SIGINFO;
    counting.sa_sigaction = [](int, siginfo_t* info, void*) {
      seen = seen + 1;
      if (info->si_code == SI_USER && info->si_pid == getppid()) forwarded = forwarded + 1;
    };
    sigaction(signal, &counting, nullptr);
  }
  Say("started %d %d %d\n", getpid(), sigismember(&original, signal), before.sa_handler == SIG_IGN ? 1 : 0);
  while (asked == 0) {
    sigsuspend(&original);
    if (called != 0) Say("awake %d\n", static_cast<int>(forwarded));
    called = 0;
    if (uses != 0) UseTerminal(signal);
    uses = 0;
  }
  sigset_t pending;
  sigpending(&pending);
  Say("saw %d %d\n", static_cast<int>(seen), sigismember(&pending, signal));
  return kCodeOfCommand;
}

int Shell(const char* terminal, int signal, const std::string& disposition, char** command) {
  setsid();
  const int tty = open(terminal, O_RDWR | O_CLOEXEC);
  if (tty < 0) return 1;
  // Signals for the job must not reach the shell; a change of the terminal's group must not stop it.
  for (const int each : {SIGTTOU, SIGTTIN, SIGTSTP, SIGINT, SIGQUIT, SIGHUP}) Handle(each, SIG_IGN);
  Handle(SIGRTMIN + 3, [](int) {
    ioctl(shells_terminal, TIOCNOTTY);
    Report("hung\n");
  });
  Handle(SIGRTMIN + 4, [](int) { MoveJob(getpgrp(), /*stops_writers=*/true); });
  Handle(SIGRTMIN + 5, [](int) { MoveJob(shells_job, /*stops_writers=*/false); });
  shells_terminal = tty;
  const pid_t job = fork();
  shells_job = job;
  if (job == 0) {
    setpgid(0, 0);
    tcsetpgrp(tty, getpid());
    for (const int each : {SIGTTOU, SIGTTIN, SIGTSTP, SIGINT, SIGQUIT, SIGHUP}) Handle(each, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    if (disposition == "ignored") Handle(signal, SIG_IGN);
    if (disposition == "blocked") sigaddset(&set, signal);
    sigprocmask(SIG_SETMASK, &set, nullptr);
    // Before the command's first line.
    Say("job %d\n", getpid());
    execv(command[0], command);
    _exit(127);
  }
  while (true) {
    int status = 0;
    if (waitpid(job, &status, WUNTRACED | WCONTINUED) < 0) {
      if (errno == EINTR) continue;
      return 1;
    }
    if (WIFSTOPPED(status)) {
      Say("stopped %d\n", WSTOPSIG(status));
    } else if (WIFCONTINUED(status)) {
      Say("%s\n", "continued");
    } else if (WIFEXITED(status)) {
      Say("exited %d\n", WEXITSTATUS(status));
      return 0;
    } else {
      Say("died %d\n", WTERMSIG(status));
      return 0;
    }
  }
}

// Returns the target of each fd of the process, except that of the iteration. The name of a pipe or another object is
// without its number, which differs each time.
std::map<int, std::string> FdsOf(const std::string& process) {
  std::map<int, std::string> fds;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error);
    if (target.rfind("/proc/", 0) == 0 || target == "/dev/tty") continue;
    fds[atoi(entry.path().filename().c_str())] = target.substr(0, target.find('['));
  }
  return fds;
}

std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int Fds(int report) {
  std::string text;
  for (const auto& [fd, target] : FdsOf("/proc/self")) {
    if (fd != report) text += "fd " + std::to_string(fd) + " " + target + "\n";
  }
  const std::string parent = "/proc/" + std::to_string(getppid());
  if (FirstLineOf(parent + "/comm") == "berth") {
    for (const auto& [fd, target] : FdsOf(parent)) {
      if (fd <= STDERR_FILENO) text += "berth " + std::to_string(fd) + " " + target + "\n";
    }
  }
  return write(report, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? kCodeOfCommand : 1;
}

int Terminal() {
  const std::string line = FirstLineOf("/proc/self/stat");
  int session = 0, group = 0, terminal = 0, foreground = 0;
  // The state and the parent precede them.
  sscanf(line.c_str() + line.rfind(')') + 1, " %*c %*d %d %d %d %d", &group, &session, &terminal, &foreground);
  Say("%d %d %d %d\n", terminal, session, group, foreground);
  return kCodeOfCommand;
}

void PrintSettings() {
  int signal = 0;
  prctl(PR_GET_PDEATHSIG, &signal);
  printf("death signal %d\n", signal);
  int subreaper = 0;
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  printf("subreaper %d\n", subreaper);
  printf("personality %x\n", personality(0xffffffff));
  sched_param scheduling = {};
  sched_getparam(0, &scheduling);
  printf("scheduling: policy %d, priority %d\n", sched_getscheduler(0), scheduling.sched_priority);
  // glibc has no ioprio_get(); 1 means a process, here this one.
  printf("disk priority %lx\n", syscall(SYS_ioprio_get, 1, 0));
  for (const char* const file : {"oom_score_adj", "coredump_filter", "timerslack_ns"}) {
    printf("%s %s\n", file, FirstLineOf(std::string("/proc/self/") + file).c_str());
  }
}

// Leaves out attributes that differ between processes, and memory.
int Attributes(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) printf("argv[%d] %s\n", i, argv[i]);
  printf("session %d, group %d, parent's group %d\n", getsid(0), getpgrp(), getpgid(getppid()));
  const int tty = open("/dev/tty", O_RDWR | O_CLOEXEC);
  printf("terminal %d, foreground %d\n", tty >= 0 ? 1 : 0, tty >= 0 && tcgetpgrp(tty) == getpgrp() ? 1 : 0);
  printf("nice %d, folder %s\n", getpriority(PRIO_PROCESS, 0), std::filesystem::current_path().c_str());
  PrintSettings();
  for (int resource = 0; resource < RLIM_NLIMITS; ++resource) {
    rlimit limit = {};
    getrlimit(static_cast<__rlimit_resource>(resource), &limit);
    printf("limit %d: %lu %lu\n", resource, limit.rlim_cur, limit.rlim_max);
  }
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    for (const char* const name :
         {"Umask:", "Uid:", "Gid:", "Groups:", "NoNewPrivs:", "Seccomp:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:",
          "SigCgt:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "Cpus_allowed:", "Mems_allowed:"}) {
      if (line.rfind(name, 0) == 0) printf("%s\n", line.c_str());
    }
  }
  for (const auto& [fd, target] : FdsOf("/proc/self")) printf("fd %d %s\n", fd, target.c_str());
  std::set<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.insert(*entry);
  for (const std::string& entry : environment) printf("%s\n", entry.c_str());
  return kCodeOfCommand;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && strcmp(argv[1], "command") == 0) {
    if (strcmp(argv[4], "own-group") == 0) setpgid(0, 0);
    return Command(atoi(argv[2]), strcmp(argv[3], "handles") == 0);
  }
  if (argc > 5 && strcmp(argv[1], "shell") == 0) return Shell(argv[2], atoi(argv[3]), argv[4], argv + 5);
  if (argc > 2 && strcmp(argv[1], "traced") == 0 && ptrace(PTRACE_TRACEME) == 0) return execv(argv[2], argv + 2);
  if (argc > 1 && strcmp(argv[1], "attributes") == 0) return Attributes(argc, argv);
  if (argc == 3 && strcmp(argv[1], "fds") == 0) return Fds(atoi(argv[2]));
  if (argc == 2 && strcmp(argv[1], "terminal") == 0) return Terminal();
  return 2;
}
