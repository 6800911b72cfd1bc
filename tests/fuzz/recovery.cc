// What a broker finds of the one before: the ledger's file, and the rows in it, of today's schema or an earlier one.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/archive.h"
#include "common/bytes.h"
#include "common/row.h"
#include "daemon/core/core.h"
#include "daemon/core/core_harness.h"
#include "daemon/core/row_kind.h"
#include "daemon/ledger/ledger.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

// A ledger as the last program of schema 1 wrote it (daemon/core/core_migration_test).
constexpr char kEarlier[] = "daemon/core/testdata/ledger_schema_1";
const LedgerIdentity kIdentity = {.schema = core::kRowSchema,
                                  .earliest_schema = core::kEarliestRowSchema,
                                  .node = 7,
                                  .incarnation = 9,
                                  .boot = "golden"};
// Its times are read as of a boot that was 5,000 s before it ended.
const ArchiveOrigin kEarlierOrigin = {.schema = 1, .clock = absl::Seconds(5'000 - 1'772'366'415)};

// What an input begins with.
enum class Kind : uint8_t { kEarlierRows, kFile, kRows };

// On a file system without a disk; gone with the process.
const std::string& Folder() {
  struct Scratch {
    Scratch() {
      if (::mkdtemp(name.data()) == nullptr) std::abort();
    }
    ~Scratch() { std::filesystem::remove_all(name); }
    std::string name = "/dev/shm/berth-fuzz-XXXXXX";
  };
  static const Scratch scratch;
  return scratch.name;
}

std::string FileAt(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// A broker that had something of everything.
Rows RowsOfABroker() {
  core::CoreHarness h;
  core::Peer peer = h.Open();
  core::Peer other = h.Open(1001);
  h.MustAcquire(peer, {.pool = "gpu-tests", .holder_key = "a", .label = "job"});
  h.MustAcquire(other, {.pool = "gpu-tests", .holder_key = "b"});
  h.Acquire(peer, {.pool = "gpu-tests", .holder_key = "c", .deadline = absl::InfiniteFuture()});
  const core::AllocateResult block = h.MustAllocate(peer, MiB(2));
  h.Grant(peer, block.block.handle, other.tenant);
  h.Import(other, block.block.handle);
  h.Allocate(other, MiB(4), 1);
  h.Reserve(peer, {.items = {{.device = 0, .bytes = MiB(2)}}});
  h.MakePlan(peer, {.units = 10});
  h.OpenStream(peer);
  return h.core->AllRows();
}

void Expect(bool holds, const char* what, const absl::Status& why = absl::OkStatus()) {
  if (holds) return;
  std::cerr << what << ": " << why << "\n";
  std::abort();
}

std::unique_ptr<core::Core> NewCore() {
  core::Config config = core::CoreHarness::DefaultConfig();
  config.pools.push_back({.name = "placed", .cap = 4, .device_cap = 2});
  return std::make_unique<core::Core>(
      config, [last_id = uint64_t{0}]() mutable { return ++last_id; },
      [](core::StreamKey) { return core::StreamWords(); });
}

// The rows that are kept once `rows` are taken; none where they are not. What is kept the next broker takes as it is.
std::optional<Rows> Take(const Rows& rows, const ArchiveOrigin& origin) {
  const std::unique_ptr<core::Core> core = NewCore();
  if (!core::Restore(rows, core.get(), origin).ok()) return std::nullopt;
  Rows kept = core->AllRows();
  const std::unique_ptr<core::Core> next = NewCore();
  const absl::Status again = core::Restore(kept, next.get());
  Expect(again.ok(), "what was taken is not taken again", again);
  Expect(next->AllRows() == kept, "what was taken is not the same when it is taken again");
  return kept;
}

void OpenFile(const std::string& bytes) {
  std::ofstream(absl::StrCat(Folder(), "/", Ledger::kName), std::ios::binary) << bytes;
  const absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Open(Folder(), kIdentity);
  if (!ledger.ok()) return;
  const Rows rows = (*ledger)->AllRows();
  if ((*ledger)->schema() != core::kRowSchema) {
    const std::optional<Rows> kept = Take(rows, kEarlierOrigin);
    if (!kept.has_value()) return;
    const absl::Status migrated = (*ledger)->Migrate(*kept);
    Expect(migrated.ok(), "rows that were taken are not kept", migrated);
    Expect((*ledger)->AllRows() == *kept, "others than were taken are kept");
  }
  RowBatch batch;
  batch.Put({.kind = 1, .id = 1}, "row");
  (*ledger)->Commit(batch).IgnoreError();
}

void Restore(const std::string& bytes, const ArchiveOrigin& origin) {
  Rows rows;
  const auto visit = [&rows](const RowKey& key, std::optional<absl::string_view> content) {
    if (content.has_value()) rows[key] = std::string(*content);
  };
  if (RowBatch::Walk(bytes, visit).ok()) Take(rows, origin);
}

std::string InputOf(Kind kind, absl::string_view bytes) {
  return absl::StrCat(std::string(1, static_cast<char>(kind)), bytes);
}

// All of `rows`, and each by itself.
void AddSeeds(Kind kind, const Rows& rows, std::vector<std::string>* seeds) {
  RowBatch all;
  for (const auto& [key, content] : rows) {
    all.Put(key, content);
    RowBatch one;
    one.Put(key, content);
    seeds->push_back(InputOf(kind, one.bytes()));
  }
  seeds->push_back(InputOf(kind, all.bytes()));
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  const Rows rows = RowsOfABroker();
  AddSeeds(Kind::kRows, rows, &seeds);
  const std::string path = absl::StrCat(Folder(), "/", Ledger::kName);
  {
    RowBatch all;
    for (const auto& [key, content] : rows) all.Put(key, content);
    const absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Create(Folder(), kIdentity);
    if (!ledger.ok() || !(*ledger)->Commit(all).ok()) std::abort();
    // Its room is of no interest.
    seeds.push_back(InputOf(Kind::kFile, FileAt(path).substr(0, (*ledger)->file_bytes() + 64)));
  }
  std::filesystem::copy_file(kEarlier, path, std::filesystem::copy_options::overwrite_existing);
  seeds.push_back(InputOf(Kind::kFile, FileAt(path)));
  const absl::StatusOr<std::unique_ptr<Ledger>> earlier = Ledger::Open(Folder(), kIdentity);
  Expect(earlier.ok() && (*earlier)->schema() == 1, "the ledger of schema 1", earlier.status());
  AddSeeds(Kind::kEarlierRows, (*earlier)->AllRows(), &seeds);
  return seeds;
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth::fuzz;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (static_cast<Kind>(data[0] % 3)) {
    case Kind::kEarlierRows:
      Restore(bytes, kEarlierOrigin);
      break;
    case Kind::kFile:
      OpenFile(bytes);
      break;
    case Kind::kRows:
      Restore(bytes, {.schema = berth::core::kRowSchema});
      break;
  }
  return 0;
}
