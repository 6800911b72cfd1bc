// Output: a standard error whose reader is slow, stopped or gone, or that takes nothing, for tests of programs that
// must not depend on it.

#ifndef TESTS_SUPPORT_OUTPUTS_H_
#define TESTS_SUPPORT_OUTPUTS_H_

#include <string>
#include <vector>

#include "common/os/unique_fd.h"

namespace berth::testing {

struct Output {
  std::string name;
  // SubprocessOptions::error_fd of the program, unless `closed`.
  UniqueFd fd;
  bool closed = false;
  // Where a test can read what the program wrote: the other end, or another program's input; empty for none.
  UniqueFd reader;
  // Words of a program that makes a further condition true and then starts the words after it.
  std::vector<std::string> launcher;
  // Whether the output takes lines as it is; a full one takes them once Drain() has been called.
  bool takes = false;
  bool full = false;

  int error_fd() const;
};

// Returns one of each kind. `folder` is empty, or is made.
std::vector<Output> MakeOutputs(const std::string& folder);
// Returns the outputs of MakeOutputs() whose names are given.
std::vector<Output> MakeOutputs(const std::string& folder, const std::vector<std::string>& names);

// Reads everything that `output` has at this moment, and lets a stopped terminal go on.
std::string Drain(const Output& output);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_OUTPUTS_H_
