// gpu_actor: a client process that leases blocks and computes on them. It reads commands from standard input, one per
// line, and answers each on standard output (tests/support/actor/actor_wire.h). It ends at the end of its input.
//
//   session                          its session's id
//   devices                          how many devices CUDA lists for it, and the UUID of the first
//   allocate NAME BYTES [ipc]        import NAME HANDLE [ro|on=UUID]      grant NAME SESSION     drop NAME
//   write NAME SEED                  answers the number of bytes     sum NAME      overwrite NAME
//   launch NAME MILLISECONDS         begins a sum that takes so long; await NAME answers the sum
//   access NAME                      poison NAME
//   acquire NAME                     try NAME                     release NAME

#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/block_handle.h>
#include <berth/gpu_ref.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"
#include "tests/gpu/compute.h"
#include "tests/support/actor/actor_wire.h"

namespace berth::gpu {
namespace {

using Answer = absl::StatusOr<std::string>;
using Words = std::vector<std::string>;

absl::StatusOr<uint64_t> Number(const std::string& word) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(word, &number)) return absl::InvalidArgumentError(absl::StrCat("no number: ", word));
  return number;
}

class GpuActor {
 public:
  explicit GpuActor(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  Answer Do(const std::string& line) {
    Words words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    words.resize(4);
    if (words[0] == "session") return absl::StrCat(session_->id().value());
    if (words[0] == "devices") return Devices();
    if (words[0] == "allocate") return Allocate(words);
    if (words[0] == "import") return Import(words);
    if (words[0] == "acquire" || words[0] == "try") return Acquire(words);
    if (words[0] == "release") return Said(Release(words[1]));
    const auto at = held_.find(words[1]);
    if (at == held_.end()) return absl::InvalidArgumentError(absl::StrCat("nothing to ", line));
    if (words[0] == "drop") return held_.erase(at), "";
    return DoWith(words, at->second);
  }

 private:
  struct Held {
    Block block;
    // The device that it is mapped for; empty for the block's own.
    std::string device;
    std::optional<Mapping> mapping;
  };

  static Answer Said(const absl::Status& status) {
    if (!status.ok()) return status;
    return "";
  }

  static Answer Devices() {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
    BERTH_ASSIGN_OR_RETURN(const int count, driver->DeviceCount());
    BERTH_ASSIGN_OR_RETURN(const std::string uuid, driver->DeviceUuid(0));
    return absl::StrCat(count, " ", uuid);
  }

  Answer Allocate(const Words& words) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t bytes, Number(words[2]));
    BERTH_ASSIGN_OR_RETURN(
        Block block, Block::Allocate(session_, {.bytes = Bytes(bytes),
                                                .label = words[1],
                                                .export_kinds = {words[3] == "ipc" ? ExportKind::kCudaIpc
                                                                                   : ExportKind::kFd}}));
    const std::string handle = FormatHandle(block.handle());
    held_.insert_or_assign(words[1], Held{.block = std::move(block)});
    return handle;
  }

  Answer Import(const Words& words) {
    BERTH_ASSIGN_OR_RETURN(const BlockHandle handle, ParseHandle(words[2]));
    absl::string_view how = words[3];
    ImportOptions options = {.read_only = how == "ro"};
    if (absl::ConsumePrefix(&how, "on=")) options.map_on = std::string(how);
    BERTH_ASSIGN_OR_RETURN(Block block, Block::Import(session_, handle, options));
    held_.insert_or_assign(words[1], Held{.block = std::move(block), .device = options.map_on});
    return "";
  }

  Answer Acquire(const Words& words) {
    const PermitOptions options = {.holder_key = words[1]};
    BERTH_ASSIGN_OR_RETURN(Permit permit, words[0] == "try" ? Permit::TryAcquire(session_, options)
                                                            : Permit::Acquire(session_, options));
    permits_.insert_or_assign(words[1], std::move(permit));
    return "";
  }

  absl::Status Release(const std::string& name) {
    const auto at = permits_.find(name);
    if (at == permits_.end()) return absl::InvalidArgumentError(absl::StrCat("no permit ", name));
    const absl::Status status = at->second.Release();
    permits_.erase(at);
    return status;
  }

  Answer DoWith(const Words& words, Held& held) {
    if (words[0] == "grant") {
      BERTH_ASSIGN_OR_RETURN(const uint64_t session, Number(words[2]));
      return Said(held.block.GrantToSession(SessionId(session)));
    }
    if (!held.mapping.has_value()) {
      BERTH_ASSIGN_OR_RETURN(held.mapping, held.block.Map());
    }
    if (compute_ == nullptr) {
      BERTH_ASSIGN_OR_RETURN(compute_, Compute::For(held.block, held.device));
    }
    if (words[0] == "access") {
      BERTH_ASSIGN_OR_RETURN(const auto ref, GpuRef<uint32_t>::Of(*held.mapping));
      return Said(ref.Access().status());
    }
    if (words[0] == "poison") return Said(compute_->Poison());
    if (words[0] == "overwrite") return Said(compute_->Fill(*held.mapping, 0xff));
    if (words[0] == "write") return Write(words, *held.mapping);
    if (words[0] == "launch") {
      BERTH_ASSIGN_OR_RETURN(const uint64_t duration, Number(words[2]));
      return Said(compute_->Launch(*held.mapping, absl::Milliseconds(static_cast<int64_t>(duration))));
    }
    if (words[0] == "await") {
      BERTH_ASSIGN_OR_RETURN(const uint64_t sum, compute_->Await());
      return absl::StrCat(sum);
    }
    if (words[0] != "sum") return absl::InvalidArgumentError(absl::StrCat("unknown: ", words[0]));
    BERTH_ASSIGN_OR_RETURN(const uint64_t sum, compute_->Sum(*held.mapping));
    return absl::StrCat(sum);
  }

  Answer Write(const Words& words, const Mapping& mapping) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t seed, Number(words[2]));
    std::vector<uint32_t> pattern(mapping.size() / sizeof(uint32_t));
    for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = PatternWord(static_cast<uint32_t>(seed), i);
    BERTH_RETURN_IF_ERROR(compute_->Write(mapping, pattern));
    return absl::StrCat(pattern.size() * sizeof(uint32_t));
  }

  const std::shared_ptr<Session> session_;
  std::map<std::string, Permit> permits_;
  // Destroyed last: memory is unmapped before the context.
  std::unique_ptr<Compute> compute_;
  std::map<std::string, Held> held_;
};

}  // namespace
}  // namespace berth::gpu

int main() {
  const absl::StatusOr<std::shared_ptr<berth::Session>> session =
      berth::Session::Open({.label = "gpu_actor"});
  if (!session.ok()) {
    std::cerr << "gpu_actor: " << session.status() << "\n";
    return 1;
  }
  berth::gpu::GpuActor actor(*session);
  std::string line;
  while (std::getline(std::cin, line)) std::cout << berth::testing::EncodeAnswer(actor.Do(line)) << std::endl;
  return 0;
}
