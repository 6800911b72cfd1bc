// SteppedProgram: a program that a test stops at any of its system calls.

#ifndef TESTS_SUPPORT_STEPPED_PROGRAM_H_
#define TESTS_SUPPORT_STEPPED_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <string>

#include "tests/support/subprocess.h"

namespace berth::testing {

// A program whose first thread runs from one system call to the next, until it is let go. Only the constructing thread
// may use it.
class SteppedProgram {
 public:
  explicit SteppedProgram(SubprocessOptions options);

  Subprocess& process() { return process_; }

  // Runs to the next entry into a system call or return from one. Returns false if the program ends before.
  bool Step();

  // Whether the program enters this system call, with an fd of this file as the first argument unless `path` is empty.
  bool Enters(long number, const std::string& path = "") const;

  bool Blocks(int signal) const;

  // Sends the signal, unless it is 0, and lets the program run by itself.
  void LetGo(int signal);

 private:
  static SubprocessOptions Traced(SubprocessOptions options);

  Subprocess process_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_STEPPED_PROGRAM_H_
