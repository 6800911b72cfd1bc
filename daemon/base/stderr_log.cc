#include "daemon/base/stderr_log.h"

#include <unistd.h>

namespace berth {

LineOutput& StderrLog() {
  static auto* const log = new LineOutput(STDERR_FILENO, "berthd");
  return *log;
}

}  // namespace berth
