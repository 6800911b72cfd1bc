#include "tests/support/actor/actor_permits.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include <berth/error.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/sdk/transport/session_core.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "common/wire/permit_slot.h"

namespace berth::testing {
namespace {

// How often a counted holder yields to the scheduler: enough for one holder too many to be seen.
constexpr int kYields = 20;

absl::StatusOr<PermitOptions> ReadOptions(const std::vector<std::string>& words) {
  PermitOptions options;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> option = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    uint64_t number = 0;
    if (option.first == "key") {
      options.holder_key = option.second;
    } else if (option.first == "pool") {
      options.pool = option.second;
    } else if (option.first == "label") {
      options.label = option.second;
    } else if (option.first == "units" && absl::SimpleAtoi(option.second, &number)) {
      options.units = number;
    } else if (option.first == "wait_ms" && absl::SimpleAtoi(option.second, &number)) {
      options.max_wait = absl::Milliseconds(static_cast<int64_t>(number));
    } else if (option.first == "priority" && absl::SimpleAtoi(option.second, &options.priority)) {
    } else if (option.first == "try") {
      options.max_wait = absl::ZeroDuration();
    } else if (option.first == "device") {
      options.device = option.second;
    } else if (option.first == "min_free" && absl::SimpleAtoi(option.second, &number)) {
      options.min_free = Bytes(number);
    } else if (option.first == "declared" && absl::SimpleAtoi(option.second, &number)) {
      options.declared = Bytes(number);
    } else if (option.first == "exclusive") {
      options.exclusive = true;
    } else if (option.first == "independent") {
      options.independent = true;
    } else if (option.first == "adoptable") {
      options.adoptable = true;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("option ", words[i]));
    }
  }
  return options;
}

uint64_t Number(const std::vector<std::string>& words, size_t index) {
  uint64_t number = 0;
  if (index < words.size() && !absl::SimpleAtoi(words[index], &number)) number = 0;
  return number;
}

}  // namespace

ActorPermits::~ActorPermits() {
  for (auto& [name, begun] : begun_) {
    begun->cancellation.Cancel();
    Wait(*begun);
  }
}

absl::StatusOr<std::string> ActorPermits::Do(const std::string& verb, const std::vector<std::string>& words) {
  if (verb == "cycle" && words.size() == 2) return Cycle(Number(words, 0), words[1]);
  if (verb == "rush" && words.size() == 3) return Rush(Number(words, 0), Number(words, 1), Number(words, 2));
  if (words.empty()) return absl::UnimplementedError(verb);
  const std::string& name = words[0];
  if (verb == "acquire") return Acquire(words);
  if (verb == "begin") return Begin(words);
  if (verb == "async") return Async(words);
  if (verb == "slot") return WriteSlot(name);
  if (verb == "spin") return Spin(Number(words, 0));
  if (verb == "join") return Join(name);
  if (verb == "release") return Release(name);
  if (verb == "drop-elsewhere") return DropElsewhere(name);
  if (verb == "cancel" && begun_.contains(name)) {
    begun_[name]->cancellation.Cancel();
    return "";
  }
  if (verb == "notices" && permits_.contains(name)) {
    const Permit& permit = permits_.at(name);
    return absl::StrCat(permit.overdue() ? "overdue" : "", permit.revoked() ? " revoked" : "");
  }
  if (verb == "share" && permits_.contains(name)) return permits_.at(name).Share();
  if (verb == "leave" && permits_.contains(name)) {
    permits_.at(name).Leave();
    permits_.erase(name);
    return "";
  }
  return absl::UnimplementedError(verb);
}

absl::StatusOr<std::string> ActorPermits::Acquire(const std::vector<std::string>& words) {
  BERTH_ASSIGN_OR_RETURN(const PermitOptions options, ReadOptions(words));
  BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session_, options));
  std::string device = permit.device_uuid();
  permits_.insert_or_assign(words[0], std::move(permit));
  return device;
}

absl::StatusOr<std::string> ActorPermits::Begin(const std::vector<std::string>& words) {
  BERTH_ASSIGN_OR_RETURN(PermitOptions options, ReadOptions(words));
  auto begun = std::make_unique<Begun>();
  options.cancellation = &begun->cancellation;
  begun->thread =
      std::thread([this, options, raw = begun.get()] { raw->result = Permit::Acquire(session_, options); });
  begun_[words[0]] = std::move(begun);
  return "";
}

absl::StatusOr<std::string> ActorPermits::Async(const std::vector<std::string>& words) {
  BERTH_ASSIGN_OR_RETURN(PermitOptions options, ReadOptions(words));
  auto begun = std::make_unique<Begun>();
  options.cancellation = &begun->cancellation;
  Begun& raw = *begun;
  begun_[words[0]] = std::move(begun);
  Permit::AcquireAsync(session_, options, [&raw](absl::StatusOr<Permit> permit) {
    raw.result = std::move(permit);
    raw.done.Notify();
  });
  return "";
}

void ActorPermits::Wait(Begun& begun) {
  if (begun.thread.joinable()) {
    begun.thread.join();
  } else {
    begun.done.WaitForNotification();
  }
}

absl::StatusOr<std::string> ActorPermits::WriteSlot(const std::string& what) {
  internal::MappedPage* const own = session_->core()->fences().pages.own();
  if (own == nullptr) return absl::FailedPreconditionError("no page");
  PermitSlot& slot = own->page().permit_slot();
  static_assert(sizeof(PermitSlot) == 2 * sizeof(uint64_t));
  auto* const raw = reinterpret_cast<std::atomic<uint64_t>*>(&slot);
  if (what == "junk") raw->store(0x123456789abcdef3);
  // As a process that was stopped before it notified anyone.
  if (what == "idle") raw->store((raw->load() & ~uint64_t{3}) | 1);
  if (what == "deaf") raw[1].store(0);
  return "";
}

absl::StatusOr<std::string> ActorPermits::Spin(uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session_));
    BERTH_RETURN_IF_ERROR(permit.Release());
  }
  return "";
}

absl::Status ActorPermits::DoInForkedChild() {
  std::optional<absl::Status> async;
  // Nothing can be sent, so the callback runs at once.
  Permit::AcquireAsync(session_, {.max_wait = absl::ZeroDuration()},
                       [&async](absl::StatusOr<Permit> permit) { async = permit.status(); });
  absl::Status released = absl::FailedPreconditionError("nothing is held");
  for (auto& [name, permit] : permits_) released = permit.Release();
  if (!async.has_value()) return absl::OkStatus();
  return released.ok() ? released : *async;
}

absl::StatusOr<std::string> ActorPermits::Join(const std::string& name) {
  const auto it = begun_.find(name);
  if (it == begun_.end()) return absl::NotFoundError(name);
  const std::unique_ptr<Begun> begun = std::move(it->second);
  begun_.erase(it);
  Wait(*begun);
  if (!begun->result->ok()) return begun->result->status();
  permits_.insert_or_assign(name, **std::move(begun->result));
  return "";
}

absl::StatusOr<std::string> ActorPermits::Release(const std::string& name) {
  const auto it = permits_.find(name);
  if (it == permits_.end()) return absl::NotFoundError(name);
  const absl::Status released = it->second.Release();
  permits_.erase(it);
  if (!released.ok()) return released;
  return "";
}

absl::StatusOr<std::string> ActorPermits::DropElsewhere(const std::string& name) {
  const auto it = permits_.find(name);
  if (it == permits_.end()) return absl::NotFoundError(name);
  absl::Status released;
  std::thread([&released, permit = std::move(it->second)]() mutable { released = permit.Release(); }).join();
  permits_.erase(it);
  if (!released.ok()) return released;
  return "";
}

absl::StatusOr<std::string> ActorPermits::Cycle(uint64_t count, const std::string& counter_path) {
  const UniqueFd file(::open(counter_path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return OsError(counter_path, errno);
  void* const page =
      ::mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (page == MAP_FAILED) return OsError("mmap", errno);
  auto& inside = *static_cast<std::atomic<uint64_t>*>(page);
  uint64_t most = 0;
  for (uint64_t i = 0; i < count; ++i) {
    BERTH_ASSIGN_OR_RETURN(Permit permit, Permit::Acquire(session_));
    most = std::max(most, ++inside);
    for (int turn = 0; turn < kYields; ++turn) {
      ::sched_yield();
      most = std::max(most, inside.load());
    }
    --inside;
    BERTH_RETURN_IF_ERROR(permit.Release());
  }
  ::munmap(page, sizeof(std::atomic<uint64_t>));
  return absl::StrCat(most);
}

absl::StatusOr<std::string> ActorPermits::Rush(uint64_t count, uint64_t spread_us, uint64_t seed) {
  std::mt19937_64 random(seed);
  uint64_t granted = 0;
  for (uint64_t i = 0; i < count; ++i) {
    // A separate key, so that the acquire cannot nest in a permit left over by mistake.
    const PermitOptions options = {
        .max_wait = absl::Microseconds(static_cast<int64_t>(random() % spread_us + 1)),
        .holder_key = absl::StrCat("rush-", i)};
    const absl::StatusOr<Permit> permit = Permit::Acquire(session_, options);
    if (permit.ok()) {
      ++granted;
    } else if (!absl::IsDeadlineExceeded(permit.status())) {
      return permit.status();
    }
  }
  return absl::StrCat(granted);
}

}  // namespace berth::testing
