// chaos_client: a client that uses all kinds of leases, one after the other in random order, and checks every byte of
// its own. It reads commands from standard input, one per line and each only after the last was answered, and answers
// each on standard output (tests/support/actor/actor_wire.h). It ends at the end of its input.
//
//   open [cache]            opens a session, with or without caching its permit between uses
//   setup SEED DEVICES      leases its lasting blocks, on so many devices; with 0 it leases only permits and plans
//   publish NAME SEED       leases a block, fills it by the seed and publishes it
//   share                   answers a handle that any session of this user may import, and the seed of its content
//   take HANDLE SEED        imports a block that another client shared
//   setuid UID              becomes that user; must be the first command
//   reuse COUNT             leases so many blocks, finds each empty, fills it, and releases or keeps using it
//   go HISTORY PUBLISHED    begins, writes the file HISTORY, and uses blocks published as "w1" … "wPUBLISHED"
//   halt                    ends its work and releases everything except its lasting blocks.
//                           Answers the number of these blocks and their bytes, and the number of requests that were
//                           refused because of a worker's death, or given up because of three brokers' deaths; or the
//                           first error
//
//   chaos_client hold HISTORY POOL UNITS MS
//
// Records in the file HISTORY that so many units of a pool are held for so long.

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/gpu_ref.h>
#include <berth/permit.h>
#include <berth/plan.h>
#include <berth/session.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "tests/chaos/chaos_pools.h"
#include "tests/chaos/history.h"
#include "tests/gpu/compute.h"
#include "tests/support/actor/actor_wire.h"

namespace berth::testing {
namespace {

using gpu::Compute;
using gpu::PatternSum;
using gpu::PatternWord;

constexpr size_t kHeldBlocks = 2;
constexpr uint64_t kLargest = 1 << 18;
// The content left in memory before its release.
constexpr uint8_t kDirt = 0xdb;
// The longest wait for a permit, and the longest time to hold it.
constexpr uint64_t kLongestWaitMs = 2'000;
constexpr uint64_t kLongestHoldUs = 10'000;

// On a machine that is busy with other tests, several brokers may die during one waiting call.
constexpr absl::Duration kCallPatience = absl::Seconds(60);

void Pause(uint64_t microseconds) {
  const timespec pause = {.tv_sec = 0, .tv_nsec = static_cast<long>(microseconds * 1'000)};
  ::ppoll(nullptr, 0, &pause, nullptr);
}

// Whether the request was refused because it would have to wait for others.
bool IsOthersTurn(const absl::Status& status) {
  return IsRefusal(status, Reason::kWaitTimedOut) || IsRefusal(status, Reason::kNoPermit);
}

// The result of a release: the SDK repeats a release that no broker received in time.
absl::Status GivenBack(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
}

// Returns the error with the name of the step.
absl::Status Naming(const char* step, const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(step, ": ", status.message()));
}

// Whether the request was refused because of a worker's death.
bool IsWorkersDeath(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  const bool of_two_workers =
      details.has_value() && details->reason == Reason::kDriver && details->metadata.contains("ended");
  return of_two_workers || IsRefusal(status, Reason::kDeviceRebuilding) || IsRefusal(status, Reason::kStale);
}

// Whether two workers ended at commands of this user, whose commands a device refuses for a while since then.
bool IsHeldBack(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  return details.has_value() && details->reason == Reason::kDriver && details->metadata.contains("user");
}

class ChaosClient {
 public:
  using Answer = absl::StatusOr<std::string>;

  Answer Do(const std::string& line) {
    std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    words.resize(3);
    if (words[0] == "setuid") return SetUser(words);
    if (words[0] == "open") return Open(words[1] == "cache");
    if (session_ == nullptr) return absl::FailedPreconditionError("no session is open");
    if (words[0] == "setup") return SetUp(words);
    if (words[0] == "publish") return Publish(words);
    if (words[0] == "share") return Share();
    if (words[0] == "take") return Take(words);
    if (words[0] == "reuse") return Reuse(words);
    if (words[0] == "go") return Go(words);
    if (words[0] == "halt") return Halt();
    return absl::InvalidArgumentError(line);
  }

  bool going() const { return history_.has_value(); }
  // Makes one more step.
  void Step() {
    if (failed_.ok()) failed_ = StepOnce();
    if (!failed_.ok()) return Pause(kLongestHoldUs);
    history_->Step();
  }

 private:
  struct Held {
    Block block;
    Mapping mapping;
    uint64_t sum;
  };

  static absl::StatusOr<uint64_t> Number(const std::string& word) {
    uint64_t number = 0;
    if (!absl::SimpleAtoi(word, &number)) return absl::InvalidArgumentError(absl::StrCat("no number: ", word));
    return number;
  }

  static Answer SetUser(const std::vector<std::string>& words) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t uid, Number(words[1]));
    const auto user = static_cast<uid_t>(uid);
    if (::setresgid(user, user, user) < 0 || ::setresuid(user, user, user) < 0) return OsError("setresuid", errno);
    // Set again, because a change of user clears it: this process ends with the test.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    return "";
  }

  Answer Open(bool cache) {
    BERTH_ASSIGN_OR_RETURN(session_, Session::Open({.label = "chaos",
                                                    .always_new = true,
                                                    .cache_permits = cache,
                                                    .timeout = kCallPatience}));
    return "";
  }

  Answer SetUp(const std::vector<std::string>& words) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t seed, Number(words[1]));
    BERTH_ASSIGN_OR_RETURN(devices_, Number(words[2]));
    random_.seed(seed);
    while (devices_ > 0 && held_.size() < kHeldBlocks) {
      absl::StatusOr<Held> held = Lease(ExportKind::kFd);
      if (held.ok()) {
        held_.push_back(*std::move(held));
      } else if (IsHeldBack(held.status())) {
        Pause(kLongestHoldUs);
      } else {
        return held.status();
      }
    }
    return "";
  }

  Answer Publish(const std::vector<std::string>& words) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t seed, Number(words[2]));
    BERTH_ASSIGN_OR_RETURN(Block block, Block::Allocate(session_, {.bytes = Bytes(kPublishedBytes)}));
    {
      BERTH_ASSIGN_OR_RETURN(Held held, Fill(std::move(block), static_cast<uint32_t>(seed)));
      block = std::move(held.block);
    }
    BERTH_RETURN_IF_ERROR(block.Publish(words[1]));
    return "";
  }

  Answer Share() {
    const auto seed = static_cast<uint32_t>(random_());
    const auto allocate = [&] { return Block::Allocate(session_, {.bytes = Bytes(kLargest), .label = "shared"}); };
    absl::StatusOr<Block> block = allocate();
    while (IsHeldBack(block.status())) {
      Pause(kLongestHoldUs);
      block = allocate();
    }
    BERTH_RETURN_IF_ERROR(block.status());
    BERTH_ASSIGN_OR_RETURN(Held held, Fill(*std::move(block), seed));
    BERTH_RETURN_IF_ERROR(held.block.GrantToTenant(::getuid()));
    passing_.push_back(std::move(held));
    return absl::StrCat(FormatHandle(passing_.back().block.handle()), " ", seed);
  }

  Answer Take(const std::vector<std::string>& words) {
    BERTH_ASSIGN_OR_RETURN(const BlockHandle handle, ParseHandle(words[1]));
    BERTH_ASSIGN_OR_RETURN(const uint64_t seed, Number(words[2]));
    BERTH_ASSIGN_OR_RETURN(Block block, Block::Import(session_, handle));
    BERTH_ASSIGN_OR_RETURN(Mapping mapping, block.Map());
    const uint64_t sum = PatternSum(static_cast<uint32_t>(seed), Bytes(mapping.size()));
    passing_.push_back({.block = std::move(block), .mapping = std::move(mapping), .sum = sum});
    return "";
  }

  Answer Reuse(const std::vector<std::string>& words) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t count, Number(words[1]));
    for (uint64_t i = 0; i < count; ++i) {
      const ExportKind kind = random_() % 8 == 0 ? ExportKind::kCudaIpc : ExportKind::kFd;
      absl::StatusOr<Block> block = Allocate(kind);
      if (!block.ok() && IsWorkersDeath(block.status())) continue;
      BERTH_RETURN_IF_ERROR(block.status());
      absl::StatusOr<Mapping> mapping = block->Map();
      // The block's memory was lost with its worker.
      if (!mapping.ok() && kind == ExportKind::kCudaIpc) continue;
      BERTH_RETURN_IF_ERROR(mapping.status());
      BERTH_RETURN_IF_ERROR(MakeCompute(*block));
      BERTH_RETURN_IF_ERROR(Check(*mapping, /*expected=*/0));
      BERTH_RETURN_IF_ERROR(compute_->Fill(*mapping, kDirt));
      Held held = {.block = *std::move(block), .mapping = *std::move(mapping), .sum = 0};
      if (passing_.size() < kHeldBlocks) {
        passing_.push_back(std::move(held));
      } else if (random_() % 2 == 0) {
        std::swap(passing_[random_() % kHeldBlocks], held);
      }
    }
    return "";
  }

  Answer Go(const std::vector<std::string>& words) {
    BERTH_ASSIGN_OR_RETURN(published_, Number(words[2]));
    BERTH_ASSIGN_OR_RETURN(history_, History::Create(words[1]));
    refused_ = 0;
    return "";
  }

  Answer Halt() {
    history_.reset();
    BERTH_RETURN_IF_ERROR(failed_);
    for (Held& held : passing_) BERTH_RETURN_IF_ERROR(Check(held));
    passing_.clear();
    uint64_t bytes = 0;
    for (Held& held : held_) {
      BERTH_RETURN_IF_ERROR(Check(held));
      bytes += held.block.bytes().count();
    }
    return absl::StrCat(held_.size(), " ", bytes, " ", refused_);
  }

  absl::Status StepOnce() {
    const absl::Status done = AnyStep();
    // A client cannot know whether a call that three brokers received right before their deaths caused these deaths.
    const bool given_up = absl::IsUnavailable(done) && absl::StrContains(done.message(), "ended 3 times");
    return given_up ? Refused(done) : done;
  }

  absl::Status AnyStep() {
    const uint64_t draw = random_() % 20;
    if (devices_ == 0) return draw < 17 ? Naming("permit", UsePermit()) : Naming("plan", UsePlan());
    if (draw < 8) return Naming("permit", UsePermit());
    if (draw < 10) return Naming("block", UseBlock());
    if (draw < 13) return Naming("held", CheckAny(held_));
    if (draw < 14) return Naming("passing", CheckAny(passing_));
    if (draw < 16) return Naming("published", UsePublished());
    if (draw < 17) return Naming("plan", UsePlan());
    if (draw < 19) return Naming("ipc block", UseIpcBlock());
    return Naming("exchange", Exchange());
  }

  absl::Status UsePermit() {
    if (!history_->has_capacity()) return absl::OkStatus();
    const ChaosPool& pool = kChaosPools[random_() % std::size(kChaosPools)];
    PermitOptions options = {.pool = pool.name, .units = random_() % pool.most_units + 1};
    options.max_wait = absl::Milliseconds(static_cast<int64_t>(random_() % kLongestWaitMs));
    options.exclusive = pool.exclusive && random_() % 8 == 0;
    absl::StatusOr<Permit> permit = Permit::Acquire(session_, options);
    if (!permit.ok()) return IsOthersTurn(permit.status()) ? absl::OkStatus() : permit.status();
    const uint64_t interval = history_->Granted(pool.number, options.exclusive ? pool.cap : options.units);
    Pause(random_() % kLongestHoldUs);
    const absl::Status checked = random_() % 2 == 0 ? CheckAny(held_) : absl::OkStatus();
    history_->Releasing(interval);
    BERTH_RETURN_IF_ERROR(GivenBack(permit->Release()));
    return checked;
  }

  absl::Status UseBlock() {
    absl::StatusOr<Held> held = Lease(ExportKind::kFd);
    if (!held.ok()) return IsWorkersDeath(held.status()) ? Refused(held.status()) : held.status();
    BERTH_RETURN_IF_ERROR(Check(*held));
    // Freed by its destructor, or explicitly.
    return random_() % 2 == 0 ? absl::OkStatus() : GivenBack(held->block.Free());
  }

  // The memory ends with its worker, and the client is notified of that; until then no other client uses the memory.
  absl::Status UseIpcBlock() {
    absl::StatusOr<Block> block = Allocate(ExportKind::kCudaIpc);
    if (!block.ok()) return IsWorkersDeath(block.status()) ? Refused(block.status()) : block.status();
    const absl::StatusOr<Mapping> mapping = block->Map();
    if (!mapping.ok()) {
      const bool stale = GoesStale([&] { return Block::Import(session_, block->handle()).status(); });
      return stale ? Refused(mapping.status()) : mapping.status();
    }
    const auto ref = GpuRef<uint32_t>::Of(*mapping);
    if (!ref.ok()) return IsWorkersDeath(ref.status()) ? Refused(ref.status()) : ref.status();
    absl::StatusOr<Held> held = Fill(*std::move(block), static_cast<uint32_t>(random_()));
    const absl::Status checked = held.ok() ? Check(*held) : held.status();
    if (checked.ok()) return checked;
    const bool stale = absl::IsDataLoss(checked) ? !ref->Access().status().ok()
                                                 : GoesStale([&] { return ref->Access().status(); });
    return stale ? Refused(checked) : checked;
  }

  // Whether `look` comes to report that the memory was lost with its worker: a use may fail a moment before that.
  static bool GoesStale(absl::FunctionRef<absl::Status()> look) {
    absl::Status seen = look();
    for (const absl::Time end = absl::Now() + kCallPatience; seen.ok() && absl::Now() < end; seen = look()) {
      Pause(kLongestHoldUs);
    }
    return IsWorkersDeath(seen);
  }

  absl::Status UsePublished() {
    const uint64_t number = random_() % published_ + 1;
    BERTH_ASSIGN_OR_RETURN(const Block block, Block::ImportPublished(session_, absl::StrCat("w", number)));
    BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
    return Check(mapping, PatternSum(static_cast<uint32_t>(number), Bytes(mapping.size())));
  }

  absl::Status UsePlan() {
    if (!history_->has_capacity()) return absl::OkStatus();
    const ChaosPool& pool = kChaosPools[0];
    PlanOptions options = {.units = random_() % 1'000 + 1, .label = "chaos", .bytes_per_unit = KiB(64)};
    options.reserve = true;
    options.permits = PlanPermits{.pool = pool.name, .max_wait = absl::Milliseconds(500)};
    absl::StatusOr<Plan> plan = Plan::Make(session_, options);
    if (!plan.ok()) {
      const bool others = IsOthersTurn(plan.status()) || IsRefusal(plan.status(), Reason::kConstraint);
      return others ? absl::OkStatus() : plan.status();
    }
    const uint64_t interval = history_->Granted(pool.number, plan->permit_units() * plan->tiles().size());
    uint64_t end = 0;
    for (const PlanTile& tile : plan->tiles()) {
      if (tile.begin != end) return absl::DataLossError("a plan's tiles leave something out");
      end = tile.end;
    }
    if (end != options.units) return absl::DataLossError("a plan's tiles end elsewhere");
    history_->Releasing(interval);
    return GivenBack(plan->Release());
  }

  // Releases one of its lasting blocks, and leases another.
  absl::Status Exchange() {
    absl::StatusOr<Held> next = Lease(ExportKind::kFd);
    if (!next.ok()) return IsWorkersDeath(next.status()) ? Refused(next.status()) : next.status();
    Held& last = held_[random_() % held_.size()];
    BERTH_RETURN_IF_ERROR(Check(last));
    last = *std::move(next);
    return absl::OkStatus();
  }

  // Allocates a size that others use, too, or any size.
  absl::StatusOr<Block> Allocate(ExportKind kind) {
    const uint64_t bytes = random_() % 2 == 0 ? kLargest >> random_() % 3 : random_() % kLargest + 1;
    BlockOptions options = {.bytes = Bytes(bytes), .label = "chaos", .export_kinds = {kind}};
    options.device = static_cast<uint32_t>(random_() % devices_);
    return Block::Allocate(session_, options);
  }

  // Leases a new block and fills it.
  absl::StatusOr<Held> Lease(ExportKind kind) {
    BERTH_ASSIGN_OR_RETURN(Block block, Allocate(kind));
    return Fill(std::move(block), static_cast<uint32_t>(random_()));
  }

  absl::StatusOr<Held> Fill(Block block, uint32_t seed) {
    BERTH_ASSIGN_OR_RETURN(Mapping mapping, block.Map());
    BERTH_RETURN_IF_ERROR(MakeCompute(block));
    std::vector<uint32_t> words(mapping.size() / sizeof(uint32_t));
    for (size_t i = 0; i < words.size(); ++i) words[i] = PatternWord(seed, i);
    BERTH_RETURN_IF_ERROR(compute_->Write(mapping, words));
    const uint64_t sum = PatternSum(seed, Bytes(mapping.size()));
    return Held{.block = std::move(block), .mapping = std::move(mapping), .sum = sum};
  }

  absl::Status MakeCompute(const Block& block) {
    if (compute_ != nullptr) return absl::OkStatus();
    BERTH_ASSIGN_OR_RETURN(compute_, Compute::For(block));
    return absl::OkStatus();
  }

  absl::Status CheckAny(std::vector<Held>& all) {
    return all.empty() ? absl::OkStatus() : Check(all[random_() % all.size()]);
  }
  absl::Status Check(Held& held) { return Check(held.mapping, held.sum); }
  absl::Status Check(const Mapping& mapping, uint64_t expected) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t sum, compute_->Sum(mapping));
    if (sum == expected) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(mapping.size(), " bytes sum up to ", sum, ", not ", expected));
  }

  // Counts a refusal, unless it only says that an earlier one still holds.
  absl::Status Refused(const absl::Status& why) {
    refused_ += IsHeldBack(why) ? 0 : 1;
    return absl::OkStatus();
  }

  std::shared_ptr<Session> session_;
  std::mt19937_64 random_;
  uint64_t devices_ = 1;
  uint64_t published_ = 0;
  // Destroyed last: memory is unmapped before the context.
  std::unique_ptr<Compute> compute_;
  // Blocks that stay until the end, and blocks shared with others or by them.
  std::vector<Held> held_;
  std::vector<Held> passing_;
  // Set while the client works.
  std::optional<History> history_;
  absl::Status failed_;
  uint64_t refused_ = 0;
};

bool HasInput() {
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, 0) > 0;
}

int Hold(char** words) {
  uint64_t pool = 0, units = 0, milliseconds = 0;
  absl::StatusOr<History> history = History::Create(words[0]);
  if (!history.ok() || !absl::SimpleAtoi(words[1], &pool) || !absl::SimpleAtoi(words[2], &units) ||
      !absl::SimpleAtoi(words[3], &milliseconds)) {
    return 1;
  }
  const uint64_t interval = history->Granted(static_cast<uint32_t>(pool), units);
  Pause(milliseconds * 1'000);
  history->Releasing(interval);
  return 0;
}

}  // namespace
}  // namespace berth::testing

int main(int argc, char** argv) {
  if (argc == 6 && absl::string_view(argv[1]) == "hold") return berth::testing::Hold(argv + 2);
  berth::testing::ChaosClient client;
  std::string line;
  while (true) {
    if (client.going() && !berth::testing::HasInput()) {
      client.Step();
      continue;
    }
    if (!std::getline(std::cin, line)) return 0;
    std::cout << berth::testing::EncodeAnswer(client.Do(line)) << std::endl;
  }
}
