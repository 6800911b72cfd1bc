// label_prober: a client that probes for several labels at once, one thread each, and prints for each the granted
// device, or the reason why none was granted. $BERTH_FOLDER names the daemon's folder.
//
//   label_prober LABEL…

#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <berth/probe.h>
#include <berth/session.h>

#include "absl/status/statusor.h"

namespace berth::testing {
namespace {

int Run(const std::vector<std::string>& labels) {
  const absl::StatusOr<std::shared_ptr<Session>> session = Session::Open({.label = "label_prober"});
  if (!session.ok()) {
    std::cout << session.status() << std::endl;
    return 1;
  }
  // One prober for each label: only the driver is shared.
  std::vector<std::string> found(labels.size());
  std::atomic<size_t> ready = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < labels.size(); ++i) {
    threads.emplace_back([&, i] {
      const std::shared_ptr<Prober> prober = Prober::Create(*session, {.policy = DevicePolicy::kRequired});
      ++ready;
      while (ready < labels.size()) std::this_thread::yield();
      const auto probed = prober->Probe(labels[i]);
      found[i] = probed.ok() ? probed->value().uuid : std::string(probed.status().message());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : found) std::cout << one << std::endl;
  return 0;
}

}  // namespace
}  // namespace berth::testing

int main(int argc, char** argv) { return berth::testing::Run({argv + 1, argv + argc}); }
