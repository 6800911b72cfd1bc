#include "tests/runners/signal_job.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Lines that do not depend on the command: they are read where the test asked for them.
const std::set<std::string>& LinesOfShell() {
  static const auto* const lines = new std::set<std::string>{"job", "continued", "hung", "moved"};
  return *lines;
}

}  // namespace

std::string NameOf(const Cell& cell) {
  return absl::StrJoin({SignalOf(cell).name, kTargets[cell[1]], kDispositions[cell[2]], kStates[cell[3]],
                        kModes[cell[4]], kHandles[cell[5]]},
                       " ");
}

std::string NameOf(const Cell& cell, size_t a, size_t b) {
  const Words words = absl::StrSplit(NameOf(cell), ' ');
  return absl::StrCat(words[a], " ", words[b]);
}

Job::Job(const Cell& cell, const Words& command, const std::vector<std::string>& environment, bool of_operator)
    : cell_(cell) {
  master_ = UniqueFd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ::grantpt(master_.get());
  ::unlockpt(master_.get());
  // The shell opens its terminal by name.
  if (OtherUser().has_value()) (void)!::chown(::ptsname(master_.get()), *OtherUser(), static_cast<gid_t>(-1));
  Words argv = {ProgramPath("tests/runners/signal_probe"), "shell", ::ptsname(master_.get()),
                absl::StrCat(SignalOf(cell).number), kDispositions[cell[2]]};
  argv.insert(argv.end(), command.begin(), command.end());
  shell_.emplace(Subprocess::Start({.argv = argv, .environment = environment, .of_operator = of_operator}));
  Read({"job"});
  if (last_.size() > 1) (void)absl::SimpleAtoi(last_[1], &pid_);
}

Job::~Job() {
  if (pid_ > 0 && !shell_->IsGone()) ::kill(-pid_, SIGKILL);
  shell_->Wait();
}

bool Job::Read(const std::set<std::string>& wanted) {
  while (!over_) {
    const absl::StatusOr<std::string> line = shell_->ReadLine();
    if (!line.ok()) {
      said_.push_back(absl::StrCat("(", line.status().message(), ")"));
      over_ = true;
      break;
    }
    last_ = absl::StrSplit(*line, ' ');
    over_ = last_[0] == "exited" || last_[0] == "died";
    if (last_[0] == "started") {
      (void)absl::SimpleAtoi(last_[1], &command_);
      said_.push_back(absl::StrCat("started ", last_[2], last_[3]));
    } else if (!LinesOfShell().contains(last_[0])) {
      said_.push_back(*line);
    }
    if (wanted.contains(last_[0])) return true;
  }
  return false;
}

void Job::Deliver() {
  if (cell_[1] != kTerminal) return Send(SignalOf(cell_).number, static_cast<Target>(cell_[1]));
  if (SignalOf(cell_).key != 0) return Press(SignalOf(cell_).key);
  if (!UsesTerminal(cell_)) return HangUp();
  Move(/*to_foreground=*/false);
  Send(SIGRTMIN + 3, kChild);
}

void Job::Send(int signal, Target target) const {
  ::kill(target == kWrapper ? pid_ : target == kGroup ? -pid_ : command_, signal);
}

bool Job::IsAwake() {
  Send(SIGRTMIN + 2, kWrapper);
  return Read({"awake"});
}

std::string Job::End() {
  Send(SIGRTMIN + 1, kWrapper);
  ReadToEnd();
  return absl::StrJoin(last_, " ");
}

void Job::Press(char key) {
  ASSERT_EQ(::write(master_.get(), &key, 1), 1);
  char shown = 0;
  while (shown != key + '@' && ::read(master_.get(), &shown, 1) == 1) {
  }
}

void Job::HangUp() {
  // A shell that has ended has no terminal.
  if (!over_) {
    shell_->Signal(SIGRTMIN + 3);
    EXPECT_TRUE(Read({"hung"}));
  }
  master_.reset();
}

void Job::Move(bool to_foreground) {
  shell_->Signal(to_foreground ? SIGRTMIN + 5 : SIGRTMIN + 4);
  EXPECT_TRUE(Read({"moved"}));
}

void Job::GoOn() {
  if (UsesTerminal(cell_)) {
    Move(/*to_foreground=*/true);
    // The line for which the command waits.
    EXPECT_EQ(::write(master_.get(), "x\n", 2), 2);
  }
  ::kill(-pid_, SIGCONT);
  Read({"continued"});
}

}  // namespace berth::testing
