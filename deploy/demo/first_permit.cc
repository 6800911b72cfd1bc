// Acquires a permit, works, and releases it. docs/getting-started/first_permit.md quotes this file.

#include <cstdio>
#include <memory>

#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace {

absl::Status Work() {
  absl::StatusOr<std::shared_ptr<berth::Session>> session = berth::Session::Open();
  if (!session.ok()) return session.status();
  absl::StatusOr<berth::Permit> permit = berth::Permit::Acquire(*session, {.label = "first"});  // waits its turn
  if (!permit.ok()) return permit.status();

  printf("granted\n");
  absl::SleepFor(absl::Seconds(10));  // stands for work on the GPU

  return permit->Release();  // as the destructor does, but with the result
}

}  // namespace

int main() {
  const absl::Status status = Work();
  if (status.ok()) return 0;
  fprintf(stderr, "first_permit: %s\n", status.ToString().c_str());
  return 1;
}
