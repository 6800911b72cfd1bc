#include "tests/support/actor/actor_blocks.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include <berth/block_handle.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth::testing {
namespace {

// Block sizes of a churn, in bytes.
constexpr uint64_t kLeastChurn = 64;
constexpr uint64_t kMostChurn = 4096;

uint8_t PatternAt(uint64_t seed, size_t index) {
  return static_cast<uint8_t>((seed * 131 + index * 31) ^ (index >> 8));
}

// Returns the access rights of the mapping at `address`, as the kernel lists them: "rw-s", "r--s".
std::string RightsOf(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const std::string start = absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(address)), "-");
  for (std::string line; std::getline(maps, line);) {
    if (absl::StartsWith(line, start)) return std::vector<std::string>(absl::StrSplit(line, ' '))[1];
  }
  return "";
}

}  // namespace

absl::StatusOr<uint64_t> Number(const std::vector<std::string>& words, size_t index) {
  uint64_t number = 0;
  if (index >= words.size() || !absl::SimpleAtoi(words[index], &number)) {
    return absl::InvalidArgumentError("a number is missing");
  }
  return number;
}

absl::StatusOr<std::string> Said(const absl::Status& status) {
  if (!status.ok()) return status;
  return "";
}

void FillPattern(void* data, size_t size, uint64_t seed) {
  auto* const bytes = static_cast<uint8_t*>(data);
  for (size_t i = 0; i < size; ++i) bytes[i] = PatternAt(seed, i);
}

absl::Status CheckPattern(const void* data, size_t size, uint64_t seed) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; ++i) {
    if (bytes[i] != PatternAt(seed, i)) {
      return absl::DataLossError(
          absl::StrCat("byte ", i, " of ", size, " is ", bytes[i], ", not ", PatternAt(seed, i)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ExportKind>> ParseKinds(absl::string_view word) {
  if (word == "fd") return std::vector<ExportKind>{ExportKind::kFd};
  if (word == "ipc") return std::vector<ExportKind>{ExportKind::kCudaIpc};
  if (word == "any") return std::vector<ExportKind>{ExportKind::kFd, ExportKind::kCudaIpc};
  return absl::InvalidArgumentError(word);
}

std::vector<ExportKind> DefaultKinds() {
  const char* const word = getenv("BERTH_ACTOR_KIND");
  return ParseKinds(word == nullptr ? "fd" : word).value();
}

void HeardBlockEvents::Add(const BlockEvent& event) {
  MutexLock lock(&mu_);
  events_.push_back(event);
}

std::string HeardBlockEvents::Text() const {
  MutexLock lock(&mu_);
  return absl::StrJoin(events_, " ", [](std::string* out, const BlockEvent& event) {
    absl::StrAppend(out, static_cast<int>(event.what), ":", static_cast<uint32_t>(event.end.reason));
  });
}

absl::StatusOr<Mapping> ActorBlocks::MappingOf(const std::string& name) const {
  const auto at = held_.find(name);
  if (at == held_.end() || !at->second.mapping.has_value()) return absl::NotFoundError(name);
  return *at->second.mapping;
}

absl::StatusOr<std::string> ActorBlocks::Do(const std::string& verb, const std::vector<std::string>& words) {
  if (verb == "churn" && words.size() == 2) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t count, Number(words, 0));
    BERTH_ASSIGN_OR_RETURN(const uint64_t seed, Number(words, 1));
    return Churn(count, seed);
  }
  if (verb == "allocate") return Allocate(words);
  if (verb == "import") return Import(words);
  if (verb == "reserve") return Reserve(words);
  if (verb == "import-published" && words.size() == 2) {
    const auto heard = std::make_shared<HeardBlockEvents>();
    BERTH_ASSIGN_OR_RETURN(Block block,
                           Block::ImportPublished(session_, words[1], /*publisher=*/std::nullopt,
                                                  [heard](const BlockEvent& event) { heard->Add(event); }));
    held_.insert_or_assign(words[0], Held{.block = std::move(block), .heard = heard});
    return "";
  }
  // Imports by the uid of the publisher.
  if (verb == "import-published-of" && words.size() == 3) {
    uint32_t uid = 0;
    if (!absl::SimpleAtoi(words[2], &uid)) return absl::InvalidArgumentError(words[2]);
    BERTH_ASSIGN_OR_RETURN(Block block, Block::ImportPublished(session_, words[1], Block::Publisher{.uid = uid}));
    held_.insert_or_assign(words[0], Held{.block = std::move(block)});
    return "";
  }
  if (verb == "unpublish" && words.size() == 1) return Said(Block::Unpublish(session_, words[0]));
  if (verb == "unreserve" && words.size() == 1) {
    const auto it = reservations_.find(words[0]);
    if (it == reservations_.end()) return absl::NotFoundError(words[0]);
    return Said(it->second.Release());
  }
  if (words.empty()) return absl::UnimplementedError(verb);
  const auto it = held_.find(words[0]);
  if (it == held_.end()) return absl::NotFoundError(absl::StrCat(verb, " ", words[0]));
  if (verb == "drop") {
    held_.erase(it);
    return "";
  }
  return DoWith(verb, it->second, words);
}

absl::StatusOr<std::string> ActorBlocks::Allocate(const std::vector<std::string>& words) {
  BERTH_ASSIGN_OR_RETURN(const uint64_t bytes, Number(words, 1));
  BlockOptions options = {.bytes = Bytes(bytes), .export_kinds = DefaultKinds()};
  const auto heard = std::make_shared<HeardBlockEvents>();
  options.on_event = [heard](const BlockEvent& event) { heard->Add(event); };
  std::string reservation;
  for (size_t i = 2; i < words.size(); ++i) {
    const std::pair<std::string, std::string> option = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    if (option.first == "label") options.label = option.second;
    if (option.first == "kind") {
      BERTH_ASSIGN_OR_RETURN(options.export_kinds, ParseKinds(option.second));
    }
    if (option.first == "from") reservation = option.second;
    if (option.first == "wait" && !absl::ParseDuration(option.second, &options.max_wait)) {
      return absl::InvalidArgumentError(words[i]);
    }
    if (option.first == "uuid") options.device_uuid = option.second;
    if (option.first == "pick") options.pick = option.second;
    if (option.first == "device" && !absl::SimpleAtoi(option.second, &options.device)) {
      return absl::InvalidArgumentError(words[i]);
    }
  }
  BERTH_ASSIGN_OR_RETURN(Block block, Lease(options, reservation));
  std::string handle = FormatHandle(block.handle());
  held_.insert_or_assign(words[0], Held{.block = std::move(block), .heard = heard});
  return handle;
}

absl::StatusOr<Block> ActorBlocks::Lease(const BlockOptions& options, const std::string& reservation) {
  if (reservation.empty()) return Block::Allocate(session_, options);
  const auto it = reservations_.find(reservation);
  if (it == reservations_.end()) return absl::NotFoundError(reservation);
  return it->second.Allocate(options);
}

absl::StatusOr<std::string> ActorBlocks::Reserve(const std::vector<std::string>& words) {
  ReservationOptions options;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> option = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    if (option.first == "ttl") {
      if (!absl::ParseDuration(option.second, &options.ttl)) return absl::InvalidArgumentError(words[i]);
      continue;
    }
    // DEVICE=BYTES
    uint32_t device;
    uint64_t bytes;
    if (!absl::SimpleAtoi(option.first, &device) || !absl::SimpleAtoi(option.second, &bytes)) {
      return absl::InvalidArgumentError(words[i]);
    }
    options.items.push_back({.bytes = Bytes(bytes), .device = device});
  }
  BERTH_ASSIGN_OR_RETURN(Reservation reservation, Reservation::Make(session_, options));
  const uint64_t id = reservation.id().value();
  reservations_.insert_or_assign(words[0], std::move(reservation));
  return absl::StrCat(id);
}

absl::StatusOr<std::string> ActorBlocks::Import(const std::vector<std::string>& words) {
  if (words.size() < 2) return absl::InvalidArgumentError("import NAME HANDLE [ro] [kind=K]");
  BERTH_ASSIGN_OR_RETURN(const BlockHandle handle, ParseHandle(words[1]));
  ImportOptions options;
  const auto heard = std::make_shared<HeardBlockEvents>();
  options.on_event = [heard](const BlockEvent& event) { heard->Add(event); };
  for (size_t i = 2; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (word == "ro") options.read_only = true;
    if (absl::ConsumePrefix(&word, "kind=")) {
      BERTH_ASSIGN_OR_RETURN(options.export_kinds, ParseKinds(word));
    }
  }
  BERTH_ASSIGN_OR_RETURN(Block block, Block::Import(session_, handle, options));
  const uint64_t bytes = block.bytes().count();
  held_.insert_or_assign(words[0], Held{.block = std::move(block), .heard = heard});
  return absl::StrCat(bytes);
}

absl::StatusOr<std::string> ActorBlocks::DoWith(const std::string& verb, Held& held,
                                                const std::vector<std::string>& words) {
  if (verb == "map") {
    BERTH_ASSIGN_OR_RETURN(held.mapping, held.block.Map());
    BERTH_ASSIGN_OR_RETURN(held.ref, GpuRef<uint8_t>::Of(*held.mapping));
    return absl::StrCat(held.mapping->size(), " ", RightsOf(held.mapping->data()));
  }
  if (verb == "heard") return held.heard == nullptr ? "" : held.heard->Text();
  if (verb == "free") return Said(held.block.Free());
  if (verb == "publish" && words.size() == 2) return Said(held.block.Publish(words[1]));
  if (verb == "asked-back") return held.block.AskedBack() ? "yes" : "no";
  if (verb == "unmap") {
    held.ref.reset();
    held.mapping.reset();
    return "";
  }
  if (verb == "grant-session") {
    BERTH_ASSIGN_OR_RETURN(const uint64_t id, Number(words, 1));
    return Said(held.block.GrantToSession(SessionId(id)));
  }
  if (verb == "grant-tenant") {
    BERTH_ASSIGN_OR_RETURN(const uint64_t uid, Number(words, 1));
    return Said(held.block.GrantToTenant(static_cast<uint32_t>(uid), words.size() > 2 ? words[2] : ""));
  }
  if (!held.mapping.has_value()) return absl::FailedPreconditionError("not mapped");
  if (verb == "access") return Said(held.ref->Access().status());
  if (verb == "writable") {
    // A read-only mapping must not become writable.
    if (::mprotect(held.mapping->data(), held.mapping->size(), PROT_READ | PROT_WRITE) < 0) {
      return OsError("mprotect", errno);
    }
    return "";
  }
  if (verb == "letter") {
    // The letter of which the whole block consists.
    const absl::string_view letters(static_cast<const char*>(held.mapping->data()), held.mapping->size());
    const size_t other = letters.find_first_not_of(letters[0]);
    if (other == letters.npos) return std::string(letters.substr(0, 1));
    return absl::DataLossError(absl::StrCat("byte ", other, " differs from byte 0"));
  }
  BERTH_ASSIGN_OR_RETURN(const uint64_t seed, Number(words, 1));
  if (verb == "fill") {
    FillPattern(held.mapping->data(), held.mapping->size(), seed);
    return "";
  }
  if (verb == "check") return Said(CheckPattern(held.mapping->data(), held.mapping->size(), seed));
  return absl::InvalidArgumentError(verb);
}

absl::StatusOr<std::string> ActorBlocks::Churn(uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t bytes = kLeastChurn + random() % (kMostChurn - kLeastChurn + 1);
    BERTH_ASSIGN_OR_RETURN(
        Block block,
        Block::Allocate(session_, {.bytes = Bytes(bytes), .label = "churn", .export_kinds = DefaultKinds()}));
    {
      BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
      FillPattern(mapping.data(), bytes, seed + i);
      BERTH_RETURN_IF_ERROR(CheckPattern(mapping.data(), bytes, seed + i));
    }
    BERTH_RETURN_IF_ERROR(block.Free());
  }
  return "";
}

}  // namespace berth::testing
