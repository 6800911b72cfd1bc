// actor: a client of Berth that a test controls. It reads commands from standard input, one per line, and answers each
// on standard output (actor_wire.h). It ends at the end of its input.
//
//   open [label=TEXT] [cache] [timeout=DURATION] [silence]
//                                     opens the session, or joins the one in BERTH_SESSION; with `silence`, prints
//                                     "silent SOCKET" once the daemon has not answered a call for a while
//   acquire NAME [key=K] [pool=P] [units=N] [wait_ms=N] [try] [independent] [adoptable] [label=TEXT]
//   begin NAME [as acquire]           the same on a separate thread; async NAME: asynchronously, without a thread
//   join NAME   cancel NAME           waits for a begun acquire; cancels it
//   release NAME   drop-elsewhere NAME   leave NAME   share NAME
//   allocate NAME BYTES [device=N] [label=TEXT] [kind=fd|ipc|any]   import NAME HANDLE [ro] [kind=K]
//   map NAME   fill NAME SEED   check NAME SEED   access NAME   free NAME   drop NAME   writable NAME
//   grant-session NAME ID   grant-tenant NAME UID [CONTAINER]
//   child   in-child COMMAND…         starts a process in the same session; runs a command in it
//   and more: see Stage::Do().
//
// `actor --await-signal` instead runs a command that prints the signals it receives (AwaitSignals).

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "tests/support/actor/actor_arena.h"
#include "tests/support/actor/actor_blocks.h"
#include "tests/support/actor/actor_fences.h"
#include "tests/support/actor/actor_gangs.h"
#include "tests/support/actor/actor_lies.h"
#include "tests/support/actor/actor_modules.h"
#include "tests/support/actor/actor_permits.h"
#include "tests/support/actor/actor_plans.h"
#include "tests/support/actor/actor_wire.h"

extern char** environ;

namespace berth::testing {
namespace {

using Answer = absl::StatusOr<std::string>;

// A process of the same session, with pipes for its commands and answers.
class Child {
 public:
  // `entry` is the session's environment entry.
  static absl::StatusOr<Child> Spawn(const std::string& entry) {
    int input[2];
    int output[2];
    if (::pipe2(input, O_CLOEXEC) < 0 || ::pipe2(output, O_CLOEXEC) < 0) return OsError("pipe2", errno);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
    std::vector<char*> environment;
    for (char** it = environ; *it != nullptr; ++it) environment.push_back(*it);
    environment.push_back(const_cast<char*>(entry.c_str()));
    environment.push_back(nullptr);
    char name[] = "/proc/self/exe";
    char* argv[] = {name, nullptr};
    pid_t pid = 0;
    const int error = ::posix_spawn(&pid, name, &actions, nullptr, argv, environment.data());
    posix_spawn_file_actions_destroy(&actions);
    ::close(input[0]);
    ::close(output[1]);
    if (error != 0) return OsError("posix_spawn", error);
    return Child(::fdopen(input[1], "w"), ::fdopen(output[0], "r"));
  }

  Answer Run(const std::string& command) {
    fprintf(input_, "%s\n", command.c_str());
    fflush(input_);
    char line[8192];
    if (fgets(line, sizeof(line), output_) == nullptr) return absl::OutOfRangeError("the child has ended");
    std::string text = line;
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return DecodeAnswer(text);
  }

 private:
  Child(FILE* input, FILE* output) : input_(input), output_(output) {}
  FILE* input_;
  FILE* output_;
};

class Stage {
 public:
  Answer Do(const std::string& line) {
    std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) return absl::InvalidArgumentError("an empty command");
    const std::string verb = words.front();
    words.erase(words.begin());
    if (verb == "open") return Open(words);
    if (verb == "setuid") return SetUser(words);
    if (verb == "pid") return absl::StrCat(::getpid());
    if (verb == "connect") return Connect(words);
    if (verb == "exec-idle") return ExecIdle();
    if (verb == "fork-try") return ForkTry();
    if (session_ == nullptr) return absl::FailedPreconditionError("no session is open");
    if (verb == "session") return absl::StrCat(session_->id().value());
    if (verb == "status") return Said(session_->status());
    if (verb == "end") return Said(session_->End());
    if (verb == "close") return Close();
    if (verb == "child") return SpawnChild();
    if (verb == "in-child") return RunInChild(words);
    if (verb == "closefds") return CloseFds();
    if (Answer answer = permits_->Do(verb, words); !absl::IsUnimplemented(answer.status())) return answer;
    if (Answer answer = gangs_->Do(verb, words); !absl::IsUnimplemented(answer.status())) return answer;
    if (Answer answer = plans_->Do(verb, words); !absl::IsUnimplemented(answer.status())) return answer;
    if (Answer answer = modules_->Do(verb, words); !absl::IsUnimplemented(answer.status())) return answer;
    if (Answer answer = arena_->Do(verb, words); !absl::IsUnimplemented(answer.status())) return answer;
    if (Answer answer = fences_->Do(verb, words); !absl::IsUnimplemented(answer.status())) return answer;
    if (Answer answer = lies_->Do(verb, words); !absl::IsUnimplemented(answer.status())) return answer;
    return blocks_->Do(verb, words);
  }

 private:
  // Prints on another thread than the answers, which follow the end of the silence.
  static void PrintSilence(const std::string& socket) {
    static std::atomic<bool> printed = false;
    if (!printed.exchange(true)) std::cout << absl::StrCat("silent ", socket, "\n") << std::flush;
  }

  static Answer Said(const absl::Status& status) {
    if (!status.ok()) return status;
    return "";
  }

  Answer Open(const std::vector<std::string>& words) {
    SessionOptions options;
    for (const std::string& word : words) {
      const std::pair<std::string, std::string> option = absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (option.first == "label") options.label = option.second;
      if (option.first == "new") options.always_new = true;
      if (option.first == "cache") options.cache_permits = true;
      if (option.first == "silence") options.on_silence = &PrintSilence;
      if (option.first == "timeout" && !absl::ParseDuration(option.second, &options.timeout)) {
        return absl::InvalidArgumentError(word);
      }
    }
    BERTH_ASSIGN_OR_RETURN(session_, Session::Open(options));
    permits_ = std::make_unique<ActorPermits>(session_);
    gangs_ = std::make_unique<ActorGangs>(session_);
    plans_ = std::make_unique<ActorPlans>(session_);
    modules_ = std::make_unique<ActorModules>(session_);
    blocks_ = std::make_unique<ActorBlocks>(session_);
    fences_ = std::make_unique<ActorFences>(session_, blocks_.get());
    lies_ = std::make_unique<ActorLies>(session_, blocks_.get());
    arena_ = std::make_unique<ActorArena>(session_);
    return absl::StrCat(session_->id().value());
  }

  Answer Close() {
    permits_.reset();
    gangs_.reset();
    plans_.reset();
    modules_.reset();
    fences_.reset();
    lies_.reset();
    blocks_.reset();
    arena_.reset();
    session_.reset();
    return "";
  }

  Answer SetUser(const std::vector<std::string>& words) {
    uid_t uid = 0;
    if (words.size() != 1 || !absl::SimpleAtoi(words[0], &uid))
      return absl::InvalidArgumentError("setuid UID");
    if (::setresgid(uid, uid, uid) < 0 || ::setresuid(uid, uid, uid) < 0) return OsError("setresuid", errno);
    // Set again, because a change of user clears it.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    return "";
  }

  // Connects to a stream socket; succeeds where this process may.
  static Answer Connect(const std::vector<std::string>& words) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (words.size() != 1 || words[0].size() >= sizeof(address.sun_path))
      return absl::InvalidArgumentError("PATH");
    memcpy(address.sun_path, words[0].c_str(), words[0].size() + 1);
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
      return OsError("connect", errno);
    }
    return "";
  }

  // Replaces the program by exec in the same process, which closes every close-on-exec fd.
  Answer ExecIdle() {
    ::setenv("BERTH_ACTOR_IDLE", "1", 1);
    char name[] = "/proc/self/exe";
    char* argv[] = {name, nullptr};
    ::execv(name, argv);
    return OsError("execv", errno);
  }

  // Answers the SDK's result in a forked child that did not exec.
  Answer ForkTry() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) < 0) return OsError("pipe2", errno);
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::vector<std::string> said;
      if (permits_ != nullptr) said.push_back(permits_->Do("acquire", {"forked", "try"}).status().ToString());
      if (permits_ != nullptr) said.push_back(permits_->DoInForkedChild().ToString());
      if (blocks_ != nullptr) said.push_back(blocks_->Do("allocate", {"forked", "4096"}).status().ToString());
      if (arena_ != nullptr) said.push_back(arena_->Do("arena", {}).status().ToString());
      said.push_back(Session::Open().status().ToString());
      const std::string text = absl::StrJoin(said, " | ");
      if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(1);
      ::_exit(0);
    }
    ::close(ends[1]);
    std::string text;
    char bytes[1024];
    for (ssize_t got; (got = ::read(ends[0], bytes, sizeof(bytes))) > 0;)
      text.append(bytes, static_cast<size_t>(got));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(pid, &status, 0);
    if (status != 0) return absl::InternalError(absl::StrCat("the forked child ended with ", status));
    return text;
  }

  Answer SpawnChild() {
    BERTH_ASSIGN_OR_RETURN(const std::string entry, session_->Inherit());
    BERTH_ASSIGN_OR_RETURN(Child child, Child::Spawn(entry));
    child_ = std::make_unique<Child>(child);
    return child_->Run("open");
  }

  Answer RunInChild(const std::vector<std::string>& words) {
    if (child_ == nullptr) return absl::FailedPreconditionError("no child");
    return child_->Run(absl::StrJoin(words, " "));
  }

  // Closes the session's sockets under the SDK, as a program does that cleans up before it continues. Nothing uses the
  // SDK afterwards.
  static Answer CloseFds() {
    ::close_range(3, ~0u, 0);
    return "";
  }

  std::shared_ptr<Session> session_;
  std::unique_ptr<ActorPermits> permits_;
  std::unique_ptr<ActorGangs> gangs_;
  std::unique_ptr<ActorPlans> plans_;
  std::unique_ptr<ActorModules> modules_;
  std::unique_ptr<ActorBlocks> blocks_;
  std::unique_ptr<ActorFences> fences_;
  std::unique_ptr<ActorLies> lies_;
  std::unique_ptr<ActorArena> arena_;
  std::unique_ptr<Child> child_;
};

// Prints "ready", then "got TERM" and the like for every signal. Exits with 42 after a signal that ends processes.
int AwaitSignals() {
  const std::map<int, std::string> names = {{SIGTERM, "TERM"}, {SIGINT, "INT"},   {SIGHUP, "HUP"},
                                            {SIGQUIT, "QUIT"}, {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"},
                                            {SIGTSTP, "TSTP"}, {SIGCONT, "CONT"}};
  sigset_t awaited;
  ::sigemptyset(&awaited);
  for (const auto& [signal, name] : names) ::sigaddset(&awaited, signal);
  ::sigprocmask(SIG_BLOCK, &awaited, nullptr);
  std::cout << "ready" << std::endl;
  for (int signal = SIGCONT; signal == SIGCONT || signal == SIGTSTP;) {
    ::sigwait(&awaited, &signal);
    std::cout << "got " << names.at(signal) << std::endl;
  }
  return 42;
}

int Run() {
  // A test that dies takes its actors along; a child of an actor ends at the end of its input.
  ::signal(SIGPIPE, SIG_IGN);
  std::string line;
  if (getenv("BERTH_ACTOR_IDLE") != nullptr) {
    std::cout << "ok idle" << std::endl;
    while (std::getline(std::cin, line)) {
    }
    return 0;
  }
  Stage stage;
  while (std::getline(std::cin, line)) std::cout << EncodeAnswer(stage.Do(line)) << std::endl;
  return 0;
}

}  // namespace
}  // namespace berth::testing

int main(int argc, char** argv) {
  const bool await_signals = argc == 2 && strcmp(argv[1], "--await-signal") == 0;
  return await_signals ? berth::testing::AwaitSignals() : berth::testing::Run();
}
