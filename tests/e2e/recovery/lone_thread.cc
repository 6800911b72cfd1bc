// A job whose main thread ends. Another thread prints the pid, then reads lines:
//
//   acquire    opens a session of $BERTH_FOLDER, acquires a permit that it holds to the end, and prints "held" or why
//              not
//   end        ends with 9

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/statusor.h"
#include "common/os/testing/lone_thread.h"

namespace berth {
namespace {

void Run() {
  std::cout << ::getpid() << std::endl;
  std::shared_ptr<Session> session;
  std::optional<Permit> permit;
  for (std::string line; std::getline(std::cin, line) && line != "end";) {
    const char* const folder = ::getenv("BERTH_FOLDER");
    auto opened = Session::Open({.folder = folder == nullptr ? "" : folder, .always_new = true});
    if (!opened.ok()) {
      std::cout << opened.status() << std::endl;
      continue;
    }
    session = *std::move(opened);
    absl::StatusOr<Permit> acquired = Permit::Acquire(session, {});
    if (acquired.ok()) permit = *std::move(acquired);
    std::cout << (permit.has_value() ? "held" : acquired.status().ToString()) << std::endl;
  }
  ::_exit(9);
}

}  // namespace
}  // namespace berth

int main() { berth::EndMainThread(berth::Run); }
