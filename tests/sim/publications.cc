// Publications in a simulation.

#include <functional>
#include <set>
#include <string>
#include <utility>

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

// Opens an operator's session, calls `act`, and ends the session.
void Simulation::AsOperator(const std::function<void(const Caller&)>& act) {
  const Client client = NewClient();
  const auto session =
      core_->OpenSession(now_, client.secret, client.tenant, "operator", ProcessInfo{.pid = 1});
  if (!session.ok()) return Fail("an operator is refused");
  clients_.emplace(*session, client);
  const auto channel =
      core_->JoinSession(now_, *session, client.secret, client.tenant, ProcessInfo{.pid = 2});
  if (!channel.ok()) return Fail("an operator is refused");
  processes_.emplace(*channel, Process{.session = *session});
  act({.credentials = {.session = *session, .channel = *channel, .secret = client.secret},
       .tenant = client.tenant,
       .admin = true});
  Apply();
  clients_.at(*session).ended = true;
  core_->LifelineHungUp(now_, *session, &effects_);
  Apply();
  if (processes_.contains(*channel)) Kill(*channel);
  Apply();
}

// An operator deletes blocks that outlive every session.
void Simulation::CheckNames() {
  std::set<std::pair<Tenant, std::string>> names;
  for (const BlockView& block : core_->ListBlocks(Admin())) {
    if (!block.name.empty() && !names.emplace(block.tenant, block.name).second) Fail("a name names two blocks");
  }
}

void Simulation::DeletePublished(const Caller& caller) {
  uint64_t sequence = 0;
  for (const BlockView& block : core_->ListBlocks(Admin())) {
    if (block.name.empty()) continue;
    const CallId call(++last_call_);
    calls_[call] = Call{.channel = caller.credentials.channel, .sequence = ++sequence};
    core_->Unpublish(now_, call, caller, {.sequence = sequence}, {.name = block.name, .tenant = block.tenant},
                     &effects_);
  }
}

}  // namespace berth::core
