// What a broker finds of the one before: the ledger's file, and the rows in it.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/row.h"
#include "daemon/core/core.h"
#include "daemon/core/core_harness.h"
#include "daemon/ledger/ledger.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

const LedgerIdentity kIdentity = {.schema = 1, .node = 1, .incarnation = 1, .boot = "this-boot"};

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

void OpenFile(const std::string& bytes) {
  std::ofstream(absl::StrCat(Folder(), "/", Ledger::kName), std::ios::binary) << bytes;
  const absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Open(Folder(), kIdentity);
  if (!ledger.ok()) return;
  const Rows rows = (*ledger)->AllRows();
  RowBatch batch;
  batch.Put({.kind = 1, .id = 1}, "row");
  (*ledger)->Commit(batch).IgnoreError();
}

void Restore(const std::string& bytes) {
  Rows rows;
  const auto visit = [&rows](const RowKey& key, std::optional<absl::string_view> content) {
    if (content.has_value()) rows[key] = std::string(*content);
  };
  if (!RowBatch::Walk(bytes, visit).ok()) return;
  uint64_t last_id = 0;
  core::Core core(
      core::CoreHarness::DefaultConfig(), [&last_id] { return ++last_id; },
      [](core::StreamKey) { return core::StreamWords(); });
  core::Restore(rows, &core).IgnoreError();
}

}  // namespace

std::vector<std::string> Seeds() {
  RowBatch all;
  std::vector<std::string> seeds;
  for (const auto& [key, content] : RowsOfABroker()) {
    all.Put(key, content);
    RowBatch one;
    one.Put(key, content);
    seeds.push_back(absl::StrCat("\2", one.bytes()));
  }
  seeds.push_back(absl::StrCat("\2", all.bytes()));
  const absl::StatusOr<std::unique_ptr<Ledger>> ledger = Ledger::Create(Folder(), kIdentity);
  if (!ledger.ok() || !(*ledger)->Commit(all).ok()) std::abort();
  // Its room is of no interest.
  seeds.push_back(
      absl::StrCat("\1", FileAt(absl::StrCat(Folder(), "/", Ledger::kName)).substr(0, (*ledger)->file_bytes() + 64)));
  return seeds;
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  data[0] % 2 == 1 ? berth::fuzz::OpenFile(bytes) : berth::fuzz::Restore(bytes);
  return 0;
}
