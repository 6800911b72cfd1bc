// Publications in a simulation.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace berth::core {

Simulation::Payload Simulation::NewPublish(const Process& process, Client& client) {
  ForgetGone(client);
  if (client.blocks.empty() && Chance(80)) return NewAllocate(client);
  PublishRequest request{.handle = SomeHandle(client), .name = SomeName(), .replace = Chance(60)};
  for (const auto& [import, block] : process.mapped) {
    if (block == request.handle.block && Chance(95)) request.let_go.push_back(import);
  }
  if (!request.replace) return request;
  // Mostly a name that exists, to replace it.
  for (const BlockView& view : core_->ListBlocks(Admin())) {
    const bool other = view.handle != request.handle;
    if (other && !view.name.empty() && view.tenant == client.tenant && Chance(60)) request.name = view.name;
  }
  return request;
}

std::string Simulation::SomeName() { return absl::StrCat("name ", Draw(4)); }

void Simulation::ForgetGone(Client& client) {
  std::erase_if(client.blocks, [this](const BlockHandle& own) { return !IsMade(own.block) && Chance(80); });
}

}  // namespace berth::core
