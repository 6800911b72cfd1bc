// WholeLines: the lines of a file that another thread or process is writing.

#ifndef TESTS_SUPPORT_WHOLE_LINES_H_
#define TESTS_SUPPORT_WHOLE_LINES_H_

#include <fstream>
#include <string>
#include <vector>

namespace berth::testing {

// Returns the lines of the file `path` that end with a newline: a reader may meet the writer in the middle of the last
// one. A file that cannot be read has none.
inline std::vector<std::string> WholeLines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && !file.eof();) lines.push_back(line);
  return lines;
}

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_WHOLE_LINES_H_
