// The state that a broker finds from its predecessor: the ledger's file, and its records, of the current schema or an
// earlier one.

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

#include <berth/bytes.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/core.h"
#include "daemon/core/testing/core_harness.h"
#include "daemon/core/types/record_kind.h"
#include "daemon/ledger/ledger.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

// A ledger written by the last program of schema 1 (daemon/core/recovery/core_migration_test).
constexpr char kEarlier[] = "daemon/core/recovery/testdata/ledger_schema_1";
const LedgerIdentity kIdentity = {.schema = core::kRecordSchema,
                                  .earliest_schema = core::kEarliestRecordSchema,
                                  .node = 7,
                                  .incarnation = 9,
                                  .boot = "golden"};
// The ledger's times are read as of a boot that was 5,000 s before its end.
const ArchiveOrigin kEarlierOrigin = {.schema = 1, .clock = absl::Seconds(5'000 - 1'772'366'415)};

// The first byte of an input.
enum class Kind : uint8_t { kEarlierRecords, kFile, kRecords };

// A folder on a file system without a disk; removed with the process.
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

// Returns the records of a broker that had an object of each kind.
LedgerRecords RecordsOfABroker() {
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
  return h.core->AllRecords();
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
      [](core::StreamKey) { return core::FenceValues(); });
}

// Returns the records persisted after `records` are restored; none where they are rejected. The next broker restores
// persisted records unchanged.
std::optional<LedgerRecords> Take(const LedgerRecords& records, const ArchiveOrigin& origin) {
  const std::unique_ptr<core::Core> core = NewCore();
  if (!core::Restore(records, core.get(), origin).ok()) return std::nullopt;
  LedgerRecords restored = core->AllRecords();
  const std::unique_ptr<core::Core> next = NewCore();
  const absl::Status again = core::Restore(restored, next.get());
  Expect(again.ok(), "what was taken is not taken again", again);
  Expect(next->AllRecords() == restored, "what was taken is not the same when it is taken again");
  return restored;
}

void OpenFile(const std::string& bytes) {
  std::ofstream(absl::StrCat(Folder(), "/", Ledger::kName), std::ios::binary) << bytes;
  const absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Open(Folder(), kIdentity);
  if (!ledger.ok()) return;
  const LedgerRecords records = (*ledger)->AllRecords();
  if ((*ledger)->schema() != core::kRecordSchema) {
    const std::optional<LedgerRecords> restored = Take(records, kEarlierOrigin);
    if (!restored.has_value()) return;
    const absl::Status migrated = (*ledger)->Migrate(*restored);
    Expect(migrated.ok(), "restored records are not persisted", migrated);
    Expect((*ledger)->AllRecords() == *restored, "other records than the restored ones are persisted");
  }
  RecordBatch batch;
  batch.Put({.kind = 1, .id = 1}, "record");
  (*ledger)->Commit(batch).IgnoreError();
}

void Restore(const std::string& bytes, const ArchiveOrigin& origin) {
  LedgerRecords records;
  const auto visit = [&records](const RecordKey& key, std::optional<absl::string_view> content) {
    if (content.has_value()) records[key] = std::string(*content);
  };
  if (RecordBatch::Walk(bytes, visit).ok()) Take(records, origin);
}

std::string InputOf(Kind kind, absl::string_view bytes) {
  return absl::StrCat(std::string(1, static_cast<char>(kind)), bytes);
}

// Adds all of `records`, and each separately.
void AddSeeds(Kind kind, const LedgerRecords& records, std::vector<std::string>* seeds) {
  RecordBatch all;
  for (const auto& [key, content] : records) {
    all.Put(key, content);
    RecordBatch one;
    one.Put(key, content);
    seeds->push_back(InputOf(kind, one.bytes()));
  }
  seeds->push_back(InputOf(kind, all.bytes()));
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  const LedgerRecords records = RecordsOfABroker();
  AddSeeds(Kind::kRecords, records, &seeds);
  const std::string path = absl::StrCat(Folder(), "/", Ledger::kName);
  {
    RecordBatch all;
    for (const auto& [key, content] : records) all.Put(key, content);
    const absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Create(Folder(), kIdentity);
    if (!ledger.ok() || !(*ledger)->Commit(all).ok()) std::abort();
    // The file's unused space does not matter.
    seeds.push_back(InputOf(Kind::kFile, FileAt(path).substr(0, (*ledger)->file_bytes() + 64)));
  }
  std::filesystem::copy_file(kEarlier, path, std::filesystem::copy_options::overwrite_existing);
  seeds.push_back(InputOf(Kind::kFile, FileAt(path)));
  const absl::StatusOr<std::unique_ptr<Ledger>> earlier = Ledger::Open(Folder(), kIdentity);
  Expect(earlier.ok() && (*earlier)->schema() == 1, "the ledger of schema 1", earlier.status());
  AddSeeds(Kind::kEarlierRecords, (*earlier)->AllRecords(), &seeds);
  return seeds;
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth::fuzz;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (static_cast<Kind>(data[0] % 3)) {
    case Kind::kEarlierRecords:
      Restore(bytes, kEarlierOrigin);
      break;
    case Kind::kFile:
      OpenFile(bytes);
      break;
    case Kind::kRecords:
      Restore(bytes, {.schema = berth::core::kRecordSchema});
      break;
  }
  return 0;
}
