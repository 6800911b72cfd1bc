#include "daemon/broker/errand.h"

#include <utility>

#include "daemon/broker/needed_thread.h"

namespace berth {

Errand::Errand(absl::string_view purpose, std::function<void()> run)
    : run_(std::move(run)), thread_(NeededThread(purpose, [this] { Run(); })) {}

Errand::~Errand() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.Signal();
  }
  thread_.join();
}

void Errand::Ask() {
  MutexLock lock(&mu_);
  asked_ = true;
  changed_.Signal();
}

void Errand::Run() {
  while (true) {
    {
      MutexLock lock(&mu_);
      while (!asked_ && !stop_) changed_.Wait(&mu_);
      if (stop_) return;
      asked_ = false;
    }
    run_();
  }
}

}  // namespace berth
