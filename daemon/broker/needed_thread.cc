#include "daemon/broker/needed_thread.h"

#include <unistd.h>

#include <string>

#include "daemon/supervisor/processes/child_process.h"
#include "spdlog/spdlog.h"

namespace berth {

void EndWithoutThread(const absl::Status& status) {
  spdlog::critical("cannot start a thread: {}; restarting the broker", std::string(status.message()));
  ::_exit(kExitForWant);
}

}  // namespace berth
