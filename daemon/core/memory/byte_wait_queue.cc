#include "daemon/core/memory/byte_wait_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/memory/byte_wait_lines.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {

// ---- Entries --------------------------------------------------------------------------------------------------

Waiting& ByteWaitQueue::Push(Waiting waiting) {
  BERTH_INVARIANT(!by_request_.contains(waiting.request));
  BERTH_INVARIANT(!waiting.patient || waiting.asks.size() == 1);
  waiting.number = ++last_number_;
  journal_.Touch(RecordKind::kMemoryCounters);
  Mark(waiting);
  return Insert(std::move(waiting));
}

bool ByteWaitQueue::Restore(Waiting waiting) {
  const bool asks = waiting.patient ? waiting.asks.size() == 1 : !waiting.asks.empty();
  if (!asks || waiting.number > last_number_ || entries_.contains(waiting.number) ||
      by_request_.contains(waiting.request)) {
    return false;
  }
  Insert(std::move(waiting));
  return true;
}

Waiting& ByteWaitQueue::Insert(Waiting waiting) {
  const uint64_t number = waiting.number;
  Waiting& entry = entries_.emplace(number, Entry{.waiting = std::move(waiting)}).first->second.waiting;
  by_request_.emplace(entry.request, number);
  awake_.insert(number);
  Count(entry, &counts_, &blocks_);
  return entry;
}

Waiting ByteWaitQueue::Remove(uint64_t number) {
  Entry& entry = entries_.at(number);
  Mark(entry.waiting);
  if (entry.waiting.reserved_since.has_value()) EndReserve(entry);
  if (entry.parked_on != nullptr) Unpark(entry);
  EndInvitation(entry.waiting);
  Discount(entry.waiting);
  awake_.erase(number);
  by_request_.erase(entry.waiting.request);
  return std::move(entries_.extract(number).mapped().waiting);
}

Waiting ByteWaitQueue::Take(const RequestId& request) {
  const auto found = by_request_.find(request);
  BERTH_INVARIANT(found != by_request_.end());
  return Remove(found->second);
}

Waiting* ByteWaitQueue::Find(const RequestId& request) {
  const auto found = by_request_.find(request);
  return found == by_request_.end() ? nullptr : &entries_.at(found->second).waiting;
}

const Waiting* ByteWaitQueue::FindNumber(uint64_t number) const {
  const auto found = entries_.find(number);
  return found == entries_.end() ? nullptr : &found->second.waiting;
}

void ByteWaitQueue::ForEach(absl::FunctionRef<void(const Waiting&)> visit) const {
  for (const auto& [number, entry] : entries_) visit(entry.waiting);
}

// ---- Deadlines ------------------------------------------------------------------------------------------------

void ByteWaitQueue::SetDeadline(const RequestId& request, absl::Time deadline) {
  Waiting* const waiting = Find(request);
  if (waiting == nullptr || !waiting->patient) return;
  counts_.deadlines.erase({waiting->deadline, waiting->number});
  waiting->deadline = deadline;
  counts_.deadlines.emplace(deadline, waiting->number);
  Mark(*waiting);
}

std::vector<Waiting> ByteWaitQueue::TakeExpired(absl::Time now) {
  std::set<uint64_t> numbers;
  for (const auto& [deadline, number] : counts_.deadlines) {
    if (deadline > now) break;
    numbers.insert(number);
  }
  std::vector<Waiting> expired;
  for (const uint64_t number : numbers) expired.push_back(Remove(number));
  return expired;
}

absl::Time ByteWaitQueue::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  if (!counts_.deadlines.empty()) next = counts_.deadlines.begin()->first;
  if (!counts_.reserves.empty()) next = std::min(next, counts_.reserves.begin()->first + options_.reserve_time);
  if (!counts_.invitations.empty()) {
    next = std::min(next, counts_.invitations.begin()->first + options_.invitation_time);
  }
  return next;
}

// ---- Requests to judge ----------------------------------------------------------------------------------------

void ByteWaitQueue::Wake() {
  for (const ByteBudget* const budget : changes_.Take()) {
    for (const uint64_t number : lines_.FindFitting(*budget)) Unpark(entries_.at(number));
    if (!budget->limit().has_value()) continue;
    // Wakes requests for more bytes than the limit, which can never be granted.
    while (true) {
      const auto larger = sizes_.upper_bound({budget->number(), *budget->limit(), UINT64_MAX});
      if (larger == sizes_.end() || std::get<0>(*larger) != budget->number()) break;
      Unpark(entries_.at(std::get<2>(*larger)));
    }
  }
}

Waiting* ByteWaitQueue::NextAwake(uint64_t after) {
  const auto next = awake_.upper_bound(after);
  return next == awake_.end() ? nullptr : &entries_.at(*next).waiting;
}

void ByteWaitQueue::Park(const Waiting& waiting, ByteBudget* on, std::vector<ByteBudget*> layers) {
  Entry& entry = At(waiting);
  BERTH_INVARIANT(entry.parked_on == nullptr && waiting.patient && !waiting.reserved_since.has_value());
  const Bytes bytes = waiting.asks.front().bytes;
  entry.parked_on = on;
  entry.layers = std::move(layers);
  lines_.Enter(*on, waiting.number, bytes, waiting.passes);
  for (const ByteBudget* const layer : entry.layers) sizes_.emplace(layer->number(), bytes, waiting.number);
  awake_.erase(waiting.number);
}

void ByteWaitQueue::Unpark(Entry& entry) {
  Waiting& waiting = entry.waiting;
  const Bytes bytes = waiting.asks.front().bytes;
  for (const ByteBudget* const layer : entry.layers) sizes_.erase({layer->number(), bytes, waiting.number});
  entry.layers.clear();
  const uint64_t passes = lines_.Leave(*std::exchange(entry.parked_on, nullptr), waiting.number);
  if (std::exchange(waiting.passes, passes) != passes) Mark(waiting);
  awake_.insert(waiting.number);
}

Waiting* ByteWaitQueue::RecordGrant(const ByteBudget& budget, absl::Time now) {
  const std::optional<uint64_t> oldest = lines_.RecordGrant(budget);
  if (!oldest.has_value()) return nullptr;
  Entry& entry = entries_.at(*oldest);
  Waiting& waiting = entry.waiting;
  entry.reserves = entry.parked_on;
  lines_.Reserve(budget, *oldest);
  Unpark(entry);
  waiting.reserved_since = now;
  counts_.reserves.emplace(now, waiting.number);
  Mark(waiting);
  return &waiting;
}

void ByteWaitQueue::ForEachReserved(absl::FunctionRef<void(const Waiting&)> visit) const {
  for (const auto& [since, number] : counts_.reserves) visit(entries_.at(number).waiting);
}

void ByteWaitQueue::ForEachInvited(absl::FunctionRef<void(const Waiting&)> visit) const {
  for (const auto& [since, number] : counts_.invitations) visit(entries_.at(number).waiting);
}

bool ByteWaitQueue::EndReserves(absl::Time now) {
  bool ended = false;
  while (!counts_.reserves.empty() && counts_.reserves.begin()->first + options_.reserve_time <= now) {
    EndReserve(entries_.at(counts_.reserves.begin()->second));
    ended = true;
  }
  return ended;
}

void ByteWaitQueue::EndReserve(Entry& entry) {
  Waiting& waiting = entry.waiting;
  Mark(waiting);
  counts_.reserves.erase({*waiting.reserved_since, waiting.number});
  waiting.reserved_since.reset();
  waiting.passes = 0;
  // A reservation restored from an earlier broker has no line.
  ByteBudget* const budget = std::exchange(entry.reserves, nullptr);
  if (budget == nullptr) return;
  lines_.EndReserve(*budget);
  changes_.Mark(budget);
}

// ---- Requests of processes that may be stopped ----------------------------------------------------------------

void ByteWaitQueue::Skip(const RequestId& request) {
  Entry& entry = entries_.at(by_request_.at(request));
  if (entry.waiting.reserved_since.has_value()) EndReserve(entry);
  if (entry.parked_on != nullptr) Unpark(entry);
  EndInvitation(entry.waiting);
}

void ByteWaitQueue::Invite(Waiting& waiting, absl::Time now) {
  BERTH_INVARIANT(!waiting.invited_since.has_value() && awake_.contains(waiting.number));
  waiting.invited_since = now;
  // Invitations are not persisted, but gangs look again after each change of the queue's records.
  Mark(waiting);
  counts_.invitations.emplace(now, waiting.number);
}

void ByteWaitQueue::EndInvitation(const RequestId& request) {
  EndInvitation(entries_.at(by_request_.at(request)).waiting);
}

void ByteWaitQueue::EndInvitation(Waiting& waiting) {
  if (!waiting.invited_since.has_value()) return;
  Mark(waiting);
  counts_.invitations.erase({*waiting.invited_since, waiting.number});
  waiting.invited_since.reset();
}

void ByteWaitQueue::EndInvitations(absl::Time now) {
  while (!counts_.invitations.empty() && counts_.invitations.begin()->first + options_.invitation_time <= now) {
    Skip(RequestId(entries_.at(counts_.invitations.begin()->second).waiting.request));
  }
}

// ---- Counts ---------------------------------------------------------------------------------------------------

SharedCount ByteWaitQueue::NewPlaces(uint32_t device) const {
  return SharedCount("waiting_allocations_per_device", options_.places_per_device,
                     options_.operator_places_per_device, absl::StrCat("device ", device));
}

void ByteWaitQueue::Count(const Waiting& waiting, Counts* counts, SharedCount* blocks) const {
  for (const ByteRequest& ask : waiting.asks) {
    auto places = counts->places.find(ask.device);
    if (places == counts->places.end()) places = counts->places.emplace(ask.device, NewPlaces(ask.device)).first;
    places->second.Take(waiting.claimant());
    counts->by_worker_kind[{ask.device, WorkerKindOf(waiting.kind)}].insert(waiting.number);
  }
  if (waiting.reserve_for.has_value()) {
    ++counts->reservations_of[waiting.session];
  } else {
    ++counts->blocks_of[waiting.tenant.account()];
    blocks->Take(waiting.claimant());
    counts->creates.try_emplace(WorkerOf(waiting), NewCreates()).first->second.Take(waiting.claimant());
  }
  if (waiting.patient) counts->deadlines.emplace(waiting.deadline, waiting.number);
  if (waiting.reserved_since.has_value()) counts->reserves.emplace(*waiting.reserved_since, waiting.number);
  if (waiting.invited_since.has_value()) counts->invitations.emplace(*waiting.invited_since, waiting.number);
}

void ByteWaitQueue::Discount(const Waiting& waiting) {
  const auto less = [](auto& counted, const auto& key) {
    const auto found = counted.find(key);
    if (--found->second == 0) counted.erase(found);
  };
  for (const ByteRequest& ask : waiting.asks) {
    counts_.places.at(ask.device).Give(waiting.claimant());
    counts_.by_worker_kind.at({ask.device, WorkerKindOf(waiting.kind)}).erase(waiting.number);
  }
  if (waiting.reserve_for.has_value()) {
    less(counts_.reservations_of, waiting.session);
  } else {
    less(counts_.blocks_of, waiting.tenant.account());
    blocks_.Give(waiting.claimant());
    counts_.creates.at(WorkerOf(waiting)).Give(waiting.claimant());
  }
  counts_.deadlines.erase({waiting.deadline, waiting.number});
}

uint64_t ByteWaitQueue::CountOf(uint32_t device) const {
  uint64_t count = 0;
  for (const WorkerKind worker_kind : kWorkerKinds) count += Of(device, worker_kind).size();
  return count;
}

const std::set<uint64_t>& ByteWaitQueue::Of(uint32_t device, WorkerKind worker_kind) const {
  const auto found = counts_.by_worker_kind.find({device, worker_kind});
  return found == counts_.by_worker_kind.end() ? none_ : found->second;
}

absl::Status ByteWaitQueue::CheckPlace(uint32_t device, const Claimant& claimant) const {
  const auto found = counts_.places.find(device);
  return found == counts_.places.end() ? NewPlaces(device).Check(claimant) : found->second.Check(claimant);
}

uint64_t ByteWaitQueue::CountBlocksFor(const Account& account) const {
  const auto found = counts_.blocks_of.find(account);
  return found == counts_.blocks_of.end() ? 0 : found->second;
}

void ByteWaitQueue::CountCreates(uint32_t device, WorkerKind worker_kind, SharedCount* creates) const {
  const auto found = counts_.creates.find({device, worker_kind});
  if (found != counts_.creates.end()) creates->Take(found->second);
}

uint64_t ByteWaitQueue::CountReservationsFor(SessionId session) const {
  const auto found = counts_.reservations_of.find(session);
  return found == counts_.reservations_of.end() ? 0 : found->second;
}

// ---- Checks ---------------------------------------------------------------------------------------------------

absl::Status ByteWaitQueue::CheckInvariants() const {
  Counts counts;
  SharedCount blocks("blocks", SharedCount::kUnlimited, SharedCount::kUnlimited);
  uint64_t parked = 0;
  for (const auto& [number, entry] : entries_) {
    Count(entry.waiting, &counts, &blocks);
    const auto found = by_request_.find(entry.waiting.request);
    if (found == by_request_.end() || found->second != number) {
      return absl::InternalError("a request that waits for bytes is not found by its name");
    }
    if (awake_.contains(number) == (entry.parked_on != nullptr)) {
      return absl::InternalError("a request that waits for bytes is neither parked nor scanned");
    }
    if (entry.parked_on == nullptr) continue;
    ++parked;
    if (const absl::Status status = CheckParked(entry); !status.ok()) return status;
  }
  // A key that was counted before may remain with a count of 0.
  Counts ours = counts_;
  std::erase_if(ours.by_worker_kind, [](const auto& of) { return of.second.empty(); });
  std::erase_if(ours.places, [&](const auto& of) { return of.second == NewPlaces(of.first); });
  std::erase_if(ours.creates, [](const auto& of) { return of.second == NewCreates(); });
  if (!(ours == counts) || !(blocks == blocks_)) {
    return absl::InternalError("the requests that wait for bytes are miscounted");
  }
  if (parked != lines_.size() || awake_.size() + parked != entries_.size() || by_request_.size() != entries_.size()) {
    return absl::InternalError("an absent request waits for bytes");
  }
  return absl::OkStatus();
}

absl::Status ByteWaitQueue::CheckParked(const Entry& entry) const {
  const Waiting& waiting = entry.waiting;
  const ByteBudget& on = *entry.parked_on;
  const Bytes bytes = waiting.asks.front().bytes;
  if (!lines_.Contains(on, waiting.number, bytes)) {
    return absl::InternalError("a parked request is not in the line of its budget");
  }
  if (bytes <= on.capacity() && !lines_.IsReserved(on, waiting.number)) {
    return absl::InternalError("a request is parked on a budget that has capacity for it");
  }
  for (const ByteBudget* const layer : entry.layers) {
    if (!sizes_.contains({layer->number(), bytes, waiting.number})) {
      return absl::InternalError("a parked request is unknown to a layer");
    }
    if (layer->Judge(bytes) == ByteBudget::Verdict::kTooLarge) {
      return absl::InternalError("a parked request exceeds a limit by itself");
    }
  }
  return absl::OkStatus();
}

// ---- byte_wait_lines.h ---------------------------------------------------------------------------------------

void ByteWaitLines::Enter(const ByteBudget& budget, uint64_t number, Bytes bytes, uint64_t passes) {
  // The grant count of a new line starts at the pass limit, so it is never below a request's passes.
  const auto [found, fresh] = lines_.try_emplace(budget.number(), Line{.grants = passes_before_reserve_});
  Line& line = found->second;
  const uint64_t since = line.grants - std::min(passes, passes_before_reserve_);
  const bool entered = line.waiters.emplace(number, Waiter{.bytes = bytes, .since = since}).second;
  BERTH_INVARIANT(entered);
  line.by_bytes.emplace(bytes, number);
}

uint64_t ByteWaitLines::Leave(const ByteBudget& budget, uint64_t number) {
  const auto found = lines_.find(budget.number());
  BERTH_INVARIANT(found != lines_.end());
  Line& line = found->second;
  const auto waiter = line.waiters.find(number);
  BERTH_INVARIANT(waiter != line.waiters.end());
  const uint64_t passes = PassesOf(line, waiter->second);
  line.by_bytes.erase({waiter->second.bytes, number});
  line.waiters.erase(waiter);
  if (line.waiters.empty() && line.reserver == 0) lines_.erase(found);
  return passes;
}

std::optional<uint64_t> ByteWaitLines::RecordGrant(const ByteBudget& budget) {
  const auto found = lines_.find(budget.number());
  if (found == lines_.end()) return std::nullopt;
  Line& line = found->second;
  ++line.grants;
  if (line.reserver != 0 || line.waiters.empty()) return std::nullopt;
  const auto& [number, waiter] = *line.waiters.begin();
  return PassesOf(line, waiter) < passes_before_reserve_ ? std::nullopt : std::optional(number);
}

void ByteWaitLines::Reserve(const ByteBudget& budget, uint64_t number) {
  Line& line = lines_.at(budget.number());
  line.reserver = number;
  line.reserver_bytes = line.waiters.at(number).bytes;
}

void ByteWaitLines::EndReserve(const ByteBudget& budget) {
  const auto found = lines_.find(budget.number());
  BERTH_INVARIANT(found != lines_.end() && found->second.reserver != 0);
  Line& line = found->second;
  line.reserver = 0;
  line.reserved_at = line.grants;
  if (line.waiters.empty()) lines_.erase(found);
}

bool ByteWaitLines::IsReserved(const ByteBudget& budget, uint64_t number) const {
  const Line* const line = Find(budget);
  return line != nullptr && Reserves(*line, budget, number);
}

std::vector<uint64_t> ByteWaitLines::FindFitting(const ByteBudget& budget) const {
  std::vector<uint64_t> fitting;
  const Line* const line = Find(budget);
  if (line == nullptr) return fitting;
  const Bytes capacity = budget.capacity();
  if (Reserves(*line, budget, UINT64_MAX)) {
    // Few requests precede the one with reserved capacity.
    for (const auto& [number, waiter] : line->waiters) {
      if (number > line->reserver) break;
      if (waiter.bytes <= capacity) fitting.push_back(number);
    }
    return fitting;
  }
  for (const auto& [bytes, number] : line->by_bytes) {
    if (bytes > capacity) break;
    fitting.push_back(number);
  }
  return fitting;
}

bool ByteWaitLines::Contains(const ByteBudget& budget, uint64_t number, Bytes bytes) const {
  const Line* const line = Find(budget);
  if (line == nullptr) return false;
  const auto waiter = line->waiters.find(number);
  return waiter != line->waiters.end() && waiter->second.bytes == bytes && line->by_bytes.contains({bytes, number});
}

uint64_t ByteWaitLines::size() const {
  uint64_t size = 0;
  for (const auto& [budget, line] : lines_) {
    BERTH_INVARIANT(line.by_bytes.size() == line.waiters.size() && (line.reserver != 0 || !line.waiters.empty()));
    size += line.waiters.size();
  }
  return size;
}

const ByteWaitLines::Line* ByteWaitLines::Find(const ByteBudget& budget) const {
  const auto found = lines_.find(budget.number());
  return found == lines_.end() ? nullptr : &found->second;
}

uint64_t ByteWaitLines::PassesOf(const Line& line, const Waiter& waiter) const {
  return std::min(passes_before_reserve_, line.grants - std::max(waiter.since, line.reserved_at));
}

bool ByteWaitLines::Reserves(const Line& line, const ByteBudget& budget, uint64_t number) {
  return line.reserver != 0 && line.reserver < number && budget.Judge(line.reserver_bytes) != ByteBudget::Verdict::kNow;
}

}  // namespace berth::core
