// The actions of the simulated clients, kernels and workers.

#include <algorithm>
#include <iterator>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace berth::core {
namespace {

Tenant TenantOf(uint64_t draw) { return Tenant{.uid = static_cast<uint32_t>(1000 + draw)}; }

Secret SecretOf(uint64_t draw) {
  Secret secret;
  for (size_t i = 0; i < 8; ++i) secret.bits[i] = static_cast<uint8_t>(draw >> (8 * i));
  return secret;
}

}  // namespace

std::optional<ChannelId> Simulation::SomeChannel() {
  if (processes_.empty()) return std::nullopt;
  return processes_.Nth(Draw(processes_.size()))->first;
}

bool Simulation::MayAsk(ChannelId channel) const {
  const Process& process = processes_.at(channel);
  return !process.hung_up && !clients_.at(process.session).ended;
}

std::optional<ChannelId> Simulation::SomeChannel(bool may_ask) {
  std::optional<ChannelId> channel = SomeChannel();
  for (int i = 0; i < 8 && channel.has_value() && MayAsk(*channel) != may_ask; ++i) channel = SomeChannel();
  return channel;
}

Caller Simulation::CallerOf(ChannelId channel) {
  const Process& process = processes_.at(channel);
  const Client& client = clients_.at(process.session);
  return Caller{.credentials = {.session = process.session, .channel = channel, .secret = client.secret},
                .tenant = client.tenant};
}

void Simulation::OpenOrJoin() {
  if (clients_.empty() || (clients_.size() < options_.sessions && Chance(40))) {
    const Client client = NewClient();
    const auto session = core_->OpenSession(now_, client.secret, client.tenant, "sim", ProcessInfo{.pid = 1});
    if (!session.ok()) return;
    ++counts_.sessions;
    clients_.emplace(*session, client);
    fresh_session_ = *session;
    if (!options_.stops) return;
    const bool no_credentials = clients_.at(*session).no_credentials = Chance(10);
    if (!no_credentials) core_->RecordSessionCredentials(now_, *session, session->value());
    return;
  }
  const auto client = clients_.Nth(Draw(clients_.size()));
  // No process has the credentials to join.
  if (client->second.unsaid_end) return;
  uint64_t joined = 0;
  for (const auto& [channel, process] : processes_) joined += process.session == client->first ? 1 : 0;
  if (joined >= options_.channels_per_session) return;
  Secret secret = client->second.secret;
  const bool wrong = Chance(2);
  if (wrong) secret.bits[15] ^= 1;
  // In some runs the daemon does not see its clients' processes. In others it cannot read their states (pauses.cc).
  const ProcessInfo process = {.pid = options_.seed % 6 == 0 ? 0 : 2};
  const auto channel = core_->JoinSession(now_, client->first, secret, client->second.tenant, process);
  if (!channel.ok()) return;
  if (wrong || client->second.ended) Fail("a process joins that may not");
  processes_.emplace(*channel, Process{.session = client->first});
  fresh_channel_ = *channel;
  if (Chance(80)) JoinAgain(*channel);
}

void Simulation::JoinAgain(ChannelId channel) {
  const Process& process = processes_.at(channel);
  for (auto it = processes_.begin(); it != processes_.end(); ++it) {
    if (it->first == channel || it->second.session != process.session || !it->second.hung_up) continue;
    core_->ReplaceChannels(now_, {&it->first, 1}, channel, &effects_);
    // A channel with work on its streams stays until its process ends.
    const bool replaced = std::any_of(effects_.begin(), effects_.end(), [&](const Effect& effect) {
      const auto* const dropped = std::get_if<DropChannel>(&effect.what);
      return dropped != nullptr && dropped->channel == it->first;
    });
    if (!replaced) return;
    it->second.replaced_by = channel;
    return;
  }
}

Simulation::Client Simulation::NewClient() {
  Client client;
  client.secret = SecretOf(Draw(UINT64_MAX));
  client.tenant = TenantOf(Draw(4));
  return client;
}

DeviceConstraint Simulation::NewConstraint() {
  DeviceConstraint constraint;
  if (!Chance(30)) return constraint;
  constraint.pick = static_cast<DevicePick>(1 + Draw(5));
  if (constraint.pick == DevicePick::kNamed) constraint.uuid = Chance(95) ? absl::StrCat("HOST-", Draw(2)) : "HOST-9";
  if (Chance(50)) constraint.min_free = MiB(Draw(40));
  if (Chance(70)) constraint.declared = MiB(Draw(Chance(95) ? 40 : 80));
  if (Chance(10)) constraint.min_capability = Chance(90) ? 90 : 91;
  if (Chance(10)) constraint.island_of = Chance(95) ? absl::StrCat("HOST-", Draw(2)) : "HOST-9";
  if (Chance(10)) constraint.among.push_back(Chance(50) ? absl::StrCat("HOST-", Draw(2)) : absl::StrCat(Draw(2)));
  constraint.wait_for_device = Chance(20);
  return constraint;
}

AcquireRequest Simulation::NewAcquire() {
  return AcquireRequest{
      .pool = Chance(60) ? "gpu-tests" : Chance(80) ? "wide" : Chance(80) ? "third" : "none",
      .units = Chance(70) ? 1 : Draw(10),
      .holder_key = absl::StrCat("thread ", Draw(4)),
      .wait = !Chance(15),
      .deadline = Chance(50) ? absl::InfiniteFuture() : now_ + absl::Milliseconds(Draw(2'000)),
      .client_cap = Chance(85) ? 0 : Draw(4),
      .adoptable = Chance(10),
      .independent = Chance(20),
      .priority = Chance(70) ? 0 : static_cast<int32_t>(Draw(21)) - 10,
      .exclusive = Chance(5),
      .device = NewConstraint()};
}

GangRequest Simulation::NewGang() {
  GangRequest request{
      .holder_key = absl::StrCat("thread ", Draw(4)),
      .wait = !Chance(15),
      .deadline = Chance(50) ? absl::InfiniteFuture() : now_ + absl::Milliseconds(Draw(2'000)),
      .adoptable = Chance(10),
      .independent = Chance(40),
      .priority = Chance(70) ? 0 : static_cast<int32_t>(Draw(21)) - 10,
      .exclusive = Chance(5)};
  for (uint64_t members = Chance(97) ? 1 + Draw(3) : 0; members > 0; --members) {
    request.members.push_back({.pool = Chance(50) ? "gpu-tests" : Chance(80) ? "wide" : Chance(90) ? "third" : "none",
                               .units = Chance(80) ? 1 : Draw(5),
                               .client_cap = Chance(90) ? 0 : Draw(4),
                               .device = NewConstraint()});
  }
  for (uint64_t items = Chance(30) ? 1 + Draw(2) : 0; items > 0; --items) {
    request.reserve.push_back({.device = static_cast<uint32_t>(Draw(2)), .bytes = Bytes(1 + Draw(12 << 20))});
  }
  return request;
}

AllocateRequest Simulation::NewAllocate(const Client& client) {
  const uint64_t sizes[] = {1, 2 << 20, (2 << 20) + 1, 6 << 20, 30 << 20, 0, UINT64_MAX, uint64_t{1} << 63};
  AllocateRequest request{
      .device = Chance(97) ? static_cast<uint32_t>(Draw(2)) : static_cast<uint32_t>(Draw(80)),
      .bytes = Bytes(sizes[Chance(85) ? Draw(4) : Draw(8)]),
      .label = absl::StrCat("label ", Draw(3)),
      .wait = Chance(20),
      .deadline = Chance(50) ? absl::InfiniteFuture() : now_ + absl::Milliseconds(Draw(2'000)),
      .kinds = {.fd = Chance(80), .cuda_ipc = true}};
  if (!client.reservations.empty() && Chance(70)) {
    request.reservation = client.reservations[Draw(client.reservations.size())];
    request.bytes = Bytes(sizes[Draw(3)]);
  } else if (Chance(1)) {
    request.reservation = ReservationId(Draw(1'000));
  } else if (Chance(30)) {
    request.constraint = NewConstraint();
    request.constraint.declared = Bytes();
  }
  return request;
}

ReserveRequest Simulation::NewReserve() {
  ReserveRequest request{.ttl = Chance(50) ? absl::InfiniteDuration() : absl::Milliseconds(Draw(3'000))};
  for (uint64_t items = Draw(4); items > 0; --items) {
    request.items.push_back({.device = static_cast<uint32_t>(Draw(2)), .bytes = Bytes(1 + Draw(12 << 20))});
  }
  return request;
}

bool Simulation::IsMade(BlockId block) const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [&](const auto& worker) { return worker.second.made.contains(block); });
}

BlockHandle Simulation::SomeHandle(const Client& client) {
  BlockHandle handle;
  // Mostly a block of its own that exists.
  if (!handles_.empty()) handle = handles_[Draw(handles_.size())];
  for (int tries = 0; tries < 4 && !client.blocks.empty() && Chance(90); ++tries) {
    handle = client.blocks[Draw(client.blocks.size())];
    if (IsMade(handle.block)) break;
  }
  if (Chance(4)) ++handle.block_generation;
  if (Chance(2)) ++handle.incarnation;
  if (Chance(2)) handle.block = BlockId(Draw(UINT64_MAX));
  return handle;
}

Simulation::Payload Simulation::NewPayload(Process& process) {
  Client& client = clients_.at(process.session);
  if (Chance(6)) return NewPlanPayload(client);
  const uint64_t die = Draw(100);
  if (die < 22) return NewAcquire(process);
  if (die < 28) return NewGang();
  if (die < 52) {
    if (Chance(5)) return AcquisitionId(Draw(1'000));
    if (client.acquisitions.empty()) return NewAcquire(process);
    const auto at = client.acquisitions.begin() + Draw(client.acquisitions.size());
    const AcquisitionId acquisition = *at;
    // Sometimes the acquisition is released again later.
    if (!Chance(10)) client.acquisitions.erase(at);
    return acquisition;
  }
  if (die < 68) return NewAllocate(client);
  if (die < 71) return NewReserve();
  if (die < 72 && !client.reservations.empty()) return client.reservations[Draw(client.reservations.size())];
  if (die < 78) {
    FreeRequest request{.handle = SomeHandle(client)};
    for (const auto& [import, block] : process.mapped) {
      if (block == request.handle.block && Chance(60)) request.let_go.push_back(import);
    }
    return request;
  }
  if (die < 85) return NewPublish(process, client);
  if (die < 86) return UnpublishRequest{.name = SomeName()};
  if (die < 90) {
    GrantRequest request{.handle = SomeHandle(client), .grantee = TenantOf(Draw(4))};
    if (Chance(50)) request.grantee = clients_.Nth(Draw(clients_.size()))->first;
    return request;
  }
  if (Chance(25)) {
    ImportRequest named{.name = SomeName()};
    if (Chance(30)) named.publisher = TenantOf(Draw(4));
    return named;
  }
  return ImportRequest{.handle = SomeHandle(client),
                       .read_only = Chance(30),
                       .kinds = {.fd = Chance(95), .cuda_ipc = Chance(90)}};
}

Simulation::Payload Simulation::NewFencePayload(ChannelId channel, Process& process) {
  if (process.streams.empty() || Chance(5)) {
    return OpenStreamRequest{.device = static_cast<uint32_t>(Draw(Chance(95) ? 2 : 9)),
                             .default_stream = Chance(20)};
  }
  if (process.mapped.empty() && Chance(90)) {
    Client& client = clients_.at(process.session);
    ForgetGone(client);
    if (client.blocks.empty() && Chance(80)) return NewAllocate(client);
    return ImportRequest{.handle = SomeHandle(client),
                         .read_only = Chance(20),
                         .kinds = {.cuda_ipc = true}};
  }
  const uint32_t slot = Chance(98) ? *std::next(process.streams.begin(), Draw(process.streams.size()))
                                   : static_cast<uint32_t>(Draw(300));
  if (!process.uses.empty() && Chance(55)) {
    const auto use = std::next(process.uses.begin(), Draw(process.uses.size()));
    if (Chance(20)) return AbandonUseRequest{.use = use->first};
    uint64_t& queued = queued_[{channel, use->second.slot}];
    // A few clients report false values.
    const uint64_t value = Chance(3) ? Draw(10) : queued + 1;
    queued = std::max(queued, value);
    return FinishUseRequest{.use = use->first, .value = value};
  }
  if (Chance(3)) {
    if (process.streams.contains(slot) && Chance(80)) {
      alone_.Drain({channel, slot}, &fence_values_[{channel, slot}]);
    }
    return CloseStreamRequest{.slot = slot};
  }
  PrepareUseRequest request{.slot = slot, .patience = absl::Milliseconds(Draw(1'500))};
  for (uint64_t i = 0; i <= Draw(3); ++i) {
    BlockId block(Draw(UINT64_MAX));
    if (!process.mapped.empty() && Chance(97)) {
      block = std::next(process.mapped.begin(), Draw(process.mapped.size()))->second;
    }
    request.uses.push_back({.block = block, .access = static_cast<Access>(1 + Draw(3))});
  }
  return request;
}

void Simulation::RunStreams() {
  for (auto& [stream, fence_values] : fence_values_) {
    const uint64_t queued = queued_[stream];
    if (Chance(5) && fence_values.done < queued) fence_values.done += 1 + Draw(queued - fence_values.done);
    if (Chance(2)) alone_.Run(stream, &fence_values, [this](uint64_t percent) { return Chance(percent); });
  }
  for (auto& [channel, process] : processes_) {
    if (process.hung_up || process.stopped || process.streams.empty()) continue;
    UseAlone(channel, process);
    // Sometimes a process hands over a block that was not requested.
    if (process.wanted.empty() ? Chance(1) : Chance(70)) return HandOver(channel, process);
  }
}

void Simulation::UseAlone(ChannelId channel, Process& process) {
  for (const auto& [import, block] : process.mapped) {
    // The daemon orders the uses of a block whose hand-over is requested.
    if (!Chance(60) || !alone_.Tracks(channel, block) || process.wanted.contains(block)) continue;
    const uint32_t slot = *std::next(process.streams.begin(), Draw(process.streams.size()));
    const bool writes = process.Writes(import) && Chance(60);
    alone_.Use({channel, slot}, block, writes, &fence_values_[{channel, slot}]);
  }
}

void Simulation::HandOver(ChannelId channel, Process& process) {
  if (process.wanted.empty())
    return core_->BlockHandedOver(now_, channel, BlockId(Draw(2'000)), {}, &effects_);
  const BlockId block = *process.wanted.begin();
  process.wanted.erase(block);
  ++counts_.handed_over;
  const std::vector<HandedMark> marks =
      alone_.HandOver(channel, block, [this](StreamKey stream) { return ++queued_[stream]; });
  Say(channel, [=, this] { core_->BlockHandedOver(now_, channel, block, marks, &effects_); });
}

void Simulation::Ask() {
  const std::optional<ChannelId> channel = SomeChannel(/*may_ask=*/true);
  if (!channel.has_value()) return;
  Process& process = processes_.at(*channel);
  if (process.stopped) return;
  const uint64_t sequence = ++process.last_sequence;
  uint64_t answered_below = 1;
  for (const auto& [asked, request] : process.requests) {
    // A process may have forgotten a later sequence already.
    if (!request.settled || asked > answered_below) break;
    answered_below = asked + 1;
  }
  Request& request = process.requests[sequence];
  request.payload = options_.only_permits ? NewPermitPayload(process)
                    : Chance(35)          ? NewFencePayload(*channel, process)
                    : Chance(8)           ? NewModulePayload(*channel)
                    : Chance(2)           ? Payload(KeepPermitsRequest())
                                          : NewPayload(process);
  // A client may acknowledge late, and settle many requests at once.
  request.answered_below = Chance(50) ? answered_below : 0;
  // Sometimes a later action of its client overtakes the request.
  if (!Chance(5)) Send(*channel, sequence, request.payload, /*reused=*/false);
}

bool Simulation::Send(ChannelId channel, uint64_t sequence, const Payload& payload, bool reused) {
  Process& process = processes_.at(channel);
  Request& request = process.requests.at(sequence);
  // The client gives up the request's objects before the request is sent.
  const auto* const freed = std::get_if<FreeRequest>(&payload);
  const auto* const published = std::get_if<PublishRequest>(&payload);
  Caller caller = CallerOf(channel);
  const bool wrong = Chance(1);
  if (wrong) caller.credentials.secret.bits[3] ^= 1;
  const CallId call(++last_call_);
  calls_[call] = Call{.channel = channel, .sequence = sequence, .reused = reused};
  const RequestTag tag{
      .sequence = sequence, .answered_below = request.answered_below, .takes_up = options_.pauses};
  if (freed != nullptr && !wrong && !reused) {
    for (const ImportId import : freed->let_go) process.mapped.erase(import);
  }
  if (published != nullptr && !wrong && !reused) {
    for (const ImportId import : published->let_go) process.mapped.erase(import);
  }
  request.sent = true;
  if (!wrong && !reused) ReleaseModule(payload);
  std::visit(
      [&](const auto& what) {
        using What = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<What, AcquireRequest>) {
          core_->Acquire(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, GangRequest>) {
          core_->AcquireGang(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, AcquisitionId>) {
          core_->Release(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, AllocateRequest>) {
          core_->Allocate(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, FreeRequest>) {
          core_->Free(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, GrantRequest>) {
          core_->Grant(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, PublishRequest>) {
          core_->Publish(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, UnpublishRequest>) {
          core_->Unpublish(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, ReserveRequest>) {
          core_->Reserve(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, ReservationId>) {
          core_->ReleaseReservation(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, ImportRequest>) {
          core_->Import(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, OpenStreamRequest>) {
          core_->OpenStream(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, CloseStreamRequest>) {
          core_->CloseStream(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, PrepareUseRequest>) {
          core_->PrepareUse(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, PlanRequest>) {
          core_->MakePlan(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, ReplanRequest>) {
          core_->Replan(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, PlanId>) {
          core_->ReleasePlan(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, FinishUseRequest>) {
          core_->FinishUse(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, ObtainModuleRequest>) {
          core_->ObtainModule(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, StoreModuleRequest>) {
          core_->StoreModule(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, AbandonModuleRequest>) {
          core_->AbandonModule(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, KeepPermitsRequest>) {
          core_->KeepPermits(now_, call, caller, tag, what, &effects_);
        } else if constexpr (std::is_same_v<What, ReleaseIfIdleRequest>) {
          core_->ReleaseIfIdle(now_, call, caller, tag, what, &effects_);
        } else {
          core_->AbandonUse(now_, call, caller, tag, what, &effects_);
        }
      },
      payload);
  return !wrong;
}

uint64_t Simulation::SomeSequence(const Process& process) {
  // A client repeats a request whose outcome it does not know, or does something odd.
  for (const auto& [sequence, request] : process.requests) {
    if (!request.settled && Chance(50)) return sequence;
  }
  const uint64_t late = std::min<uint64_t>(process.requests.size(), Chance(80) ? 4 : UINT64_MAX);
  return std::prev(process.requests.end(), Draw(late) + 1)->first;
}

void Simulation::Repeat() {
  const std::optional<ChannelId> channel = SomeChannel(/*may_ask=*/true);
  if (!channel.has_value()) return;
  Process& process = processes_.at(*channel);
  if (process.requests.empty() || process.stopped) return;
  const auto request = process.requests.find(SomeSequence(process));
  if (process.unread.contains(request->first)) return ReadGrant(*channel, process, request->first);
  // The daemon may have withdrawn an untaken grant, and have no memory of its request.
  if (request->second.first.has_value() && !offers_.contains({*channel, request->first}) && Chance(10)) {
    AcquireRequest other = NewAcquire();
    other.label = "another payload";
    Send(*channel, request->first, other, /*reused=*/true);
    return;
  }
  Payload payload = request->second.payload;
  if (auto* const acquire = std::get_if<AcquireRequest>(&payload); acquire && Chance(50)) {
    // Another attempt has another deadline.
    acquire->deadline = now_ + absl::Milliseconds(Draw(4'000));
  }
  if (!Send(*channel, request->first, payload, /*reused=*/false)) return;
  if (const auto* const before = std::get_if<AcquireRequest>(&request->second.payload)) {
    request->second.earlier_deadline = std::min(request->second.earlier_deadline, before->deadline);
  }
  request->second.payload = payload;
}

void Simulation::ForgetOne() {
  const std::optional<ChannelId> channel = SomeChannel(/*may_ask=*/true);
  if (!channel.has_value()) return;
  Process& process = processes_.at(*channel);
  if (process.requests.empty() || process.stopped) return;
  // Sometimes a request that was never sent.
  const uint64_t sequence = Chance(10) ? process.last_sequence + 1 + Draw(20) : SomeSequence(process);
  process.unread.erase(sequence);
  if (const auto request = process.requests.find(sequence); request != process.requests.end()) {
    request->second.given_up = true;
    const auto& first = request->second.first;
    const auto* const module =
        first.has_value() && first->ok() ? std::get_if<ObtainModuleResult>(&**first) : nullptr;
    if (module != nullptr) modules_.Release(module->compile);
  }
  const CallId call(++last_call_);
  calls_[call] = Call{.channel = *channel, .sequence = sequence, .forget = true};
  core_->Forget(now_, call, CallerOf(*channel), sequence, &effects_);
}

void Simulation::CancelOne() {
  if (calls_.empty()) return;
  core_->CancelCall(now_, std::next(calls_.begin(), Draw(calls_.size()))->first, &effects_);
}

void Simulation::CancelCallsOf(ChannelId channel) {
  std::vector<CallId> calls;
  for (const auto& [call, what] : calls_) {
    if (what.channel == channel) calls.push_back(call);
  }
  for (const CallId call : calls) core_->CancelCall(now_, call, &effects_);
}

void Simulation::EndSomething() {
  const uint64_t die = Draw(100);
  if (die < 60) {
    if (const std::optional<ChannelId> channel = SomeChannel(/*may_ask=*/Chance(30))) Kill(*channel);
  } else if (die < 75) {
    const std::optional<ChannelId> channel = SomeChannel();
    if (!channel.has_value()) return;
    Process& process = processes_.at(*channel);
    if (process.stopped) return;
    process.hung_up = true;
    // No socket reports it.
    if (!process.away) core_->ChannelHungUp(now_, *channel, &effects_);
  } else if (!clients_.empty()) {
    const auto client = clients_.Nth(Draw(clients_.size()));
    const SessionId session = client->first;
    if (Chance(70)) {
      client->second.ended = client->second.hung_up = true;
      if (client->second.detached && Chance(50)) {
        client->second.unsaid_end = true;
        return;
      }
      client->second.unsaid_end = false;
      return core_->LifelineHungUp(now_, session, &effects_);
    }
    OncePersisted([this, session] {
      if (!clients_.contains(session)) return;
      clients_.at(session).ended = true;
      clients_.at(session).unsaid_end = false;
    });
    const Caller caller{.credentials = {.session = session, .secret = client->second.secret},
                        .tenant = client->second.tenant};
    if (!core_->EndSession(now_, caller, SessionId(), &effects_).ok()) Fail("a session cannot end itself");
  }
}

void Simulation::Kill(ChannelId channel) {
  if (processes_.at(channel).away || processes_.at(channel).unproven) {
    const bool unproven = processes_.at(channel).unproven;
    Die(channel);
    return unproven ? void() : core_->ProcessGone(now_, channel, &effects_);
  }
  // The kernel closes a dying process's sockets before or after its pidfd fires.
  const bool before = Chance(50);
  if (before) {
    processes_.at(channel).hung_up = true;
    core_->ChannelHungUp(now_, channel, &effects_);
    Apply();
  }
  Die(channel);
  core_->ProcessGone(now_, channel, &effects_);
  if (!before) core_->ChannelHungUp(now_, channel, &effects_);
}

void Simulation::Die(ChannelId channel) {
  // The channel may have been dropped while its process lived.
  if (const auto process = processes_.find(channel); process != processes_.end()) {
    alone_.Die(
        channel,
        [&](BlockId block) {
          const auto& mapped = process->second.mapped;
          return std::any_of(mapped.begin(), mapped.end(), [&](const auto& import) {
            return import.second == block && process->second.Writes(import.first);
          });
        },
        [this](const FenceWait& wait) { return fence_values_[wait.stream].done >= wait.value; });
    // Until the daemon has acted on its end, it may be granted more.
    if (process->second.unproven || !dead_) ghosts_.insert_or_assign(channel, process->second);
    if (process->second.unproven) {
      ++counts_.ghosts;
      CancelCallsOf(channel);
    }
    if (process->second.cached.has_value()) left_cached_.emplace(channel, *process->second.cached);
    processes_.erase(process);
  }
}

void Simulation::PassTime() {
  now_ += absl::Milliseconds(Draw(500));
  if (Chance(70)) core_->Tick(now_, &effects_);
  if (core_->next_deadline() <= now_) core_->Tick(now_, &effects_);
  if (core_->next_deadline() <= now_) Fail("a deadline has passed and is still due");
  CheckDetached();
  CheckOffers();
}

void Simulation::Look() {
  const std::optional<ChannelId> channel = SomeChannel();
  if (!channel.has_value()) return;
  const Caller caller = CallerOf(*channel);
  if (!core_->Authenticate(caller).ok()) Fail("a caller is not known");
  if (!core_->GetSession(caller, SessionId()).ok()) Fail("a session does not see itself");
  for (const SessionView& session : core_->ListSessions(caller)) {
    if (session.tenant != caller.tenant) Fail("a tenant sees another's session");
  }
  const std::vector<WaiterView> waiters = core_->ListWaiters(caller, "");
  // Each check walks past all waiters: of many waiters, only a few are checked.
  const size_t first = waiters.empty() ? 0 : Draw(waiters.size());
  for (size_t i = 0; i < std::min<size_t>(waiters.size(), 4); ++i) {
    ++counts_.explained;
    const uint64_t number = waiters[(first + i) % waiters.size()].number;
    if (!core_->ExplainWait(caller, number).ok()) Fail("a wait that is listed is not explained");
  }
  for (const UsageRow& row : core_->GetUsage(caller).rows) {
    if (row.tenant != caller.tenant) Fail("a tenant sees another's bytes");
  }
}

}  // namespace berth::core
