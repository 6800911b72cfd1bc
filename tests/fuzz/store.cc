// What the service manager hands to a vault that finds nobody: fds by their names, and the page that says whose they
// are.

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/memfd.h"
#include "common/unique_fd.h"
#include "daemon/vault/broker_link.h"
#include "daemon/vault/custody_wire.h"
#include "daemon/vault/fd_store.h"
#include "daemon/vault/service_manager.h"
#include "daemon/vault/store_record.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

using custody::Key;
using custody::KeyOf;
using custody::Kind;

constexpr uint64_t kNode = 7;
// Names that count, of one input.
constexpr size_t kMaxNames = 64;

// What an input begins with.
enum class What : uint8_t { kNames, kChangedRecord, kAnyFile };

// One word of the page, as it was changed. Where a record's words lie is the record's own.
struct Change {
  uint16_t word = 0;
  uint64_t value = 0;
} __attribute__((packed));

void Expect(bool holds, const char* what) {
  if (holds) return;
  std::cerr << what << "\n";
  std::abort();
}

// A manager that takes what it is told.
absl::Status Take(const std::string&, int) { return absl::OkStatus(); }

UniqueFd AnyFd() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

void ReadNames(absl::string_view names) {
  std::vector<NamedFd> handed_over;
  for (const absl::string_view name : absl::StrSplit(names, ':')) {
    const std::optional<Key> key = FdStore::KeyOfName(name);
    Expect(!key.has_value() || FdStore::NameOf(*key) == name, "a key has another name than it was found by");
    // What is not the daemon's is said to be that, each time.
    if (key.has_value() && handed_over.size() < kMaxNames) {
      handed_over.push_back({.name = std::string(name), .fd = AnyFd()});
    }
  }
  FdStore::Forget(FdStore::Sort(std::move(handed_over), Take), Take);
}

// A vault goes by the page, as far as it can.
void GoBy(int page) {
  absl::StatusOr<StoreRecord> record = StoreRecord::Map(page);
  if (!record.ok()) return;
  record->Check(kNode).IgnoreError();
  HeldFds held;
  for (const auto& [key, place] : record->places()) {
    // Half of them were handed over.
    if (held.size() < kMaxNames && place % 2 == 0 && FdStore::Keeps(key.kind)) held.emplace(key, AnyFd());
  }
  const auto now = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  FdStore store(*std::move(record), Take);
  store.NoteKept(held);
  Expect(store.record().places().size() == held.size(), "the record has others than the manager");
  store.Reconcile(now, held, /*again=*/true);
  store.Put(now, KeyOf(Kind::kLifeline, 7));
  held.emplace(KeyOf(Kind::kLifeline, 7), AnyFd());
  store.Attend(now + FdStore::kPause, held);
  store.Drop(now, KeyOf(Kind::kLifeline, 7));
  held.erase(KeyOf(Kind::kLifeline, 7));
  store.Attend(now + 2 * FdStore::kPause, held);
}

void ReadChangedRecord(absl::string_view changes) {
  const auto [fd, record] = StoreRecord::Create(kNode).value();
  struct stat info = {};
  ::fstat(fd.get(), &info);
  for (; changes.size() >= sizeof(Change); changes.remove_prefix(sizeof(Change))) {
    Change change;
    memcpy(&change, changes.data(), sizeof(change));
    const auto at = static_cast<off_t>(change.word * sizeof(uint64_t)) % info.st_size;
    const uint64_t value = change.value;
    if (::pwrite(fd.get(), &value, sizeof(value), at) < 0) std::abort();
  }
  GoBy(fd.get());
}

void ReadFile(absl::string_view bytes) {
  const UniqueFd file = CreateMemfd("fuzz", bytes.size()).value();
  if (::pwrite(file.get(), bytes.data(), bytes.size(), 0) < 0) std::abort();
  GoBy(file.get());
}

std::string InputOf(What what, absl::string_view bytes) {
  return std::string(1, static_cast<char>(what)) + std::string(bytes);
}

// Words that differ where one record was used and the other was not.
std::string ChangesOf(int before, int after) {
  std::string changes;
  struct stat info = {};
  ::fstat(after, &info);
  for (uint16_t word = 0; word * sizeof(uint64_t) < static_cast<size_t>(info.st_size); ++word) {
    uint64_t values[2] = {};
    const auto at = static_cast<off_t>(word * sizeof(uint64_t));
    if (::pread(before, &values[0], sizeof(uint64_t), at) < 0 || ::pread(after, &values[1], sizeof(uint64_t), at) < 0) {
      std::abort();
    }
    if (values[0] != values[1]) changes += BytesOf(Change{.word = word, .value = values[1]});
  }
  return changes;
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::vector<std::string> names = {
      FdStore::NameOf(KeyOf(custody::Listener::kBerthd)), FdStore::NameOf(KeyOf(Kind::kStatePage)),
      FdStore::NameOf(KeyOf(Kind::kStoreRecord)),         FdStore::NameOf(KeyOf(Kind::kLifeline, 0x4711)),
      FdStore::NameOf(KeyOf(Kind::kChannel, UINT64_MAX)), FdStore::NameOf(KeyOf(Kind::kChannel, UINT64_MAX)),
      "berth-block-1",                                    "elsewhere"};
  const auto before = StoreRecord::Create(kNode).value();
  auto after = StoreRecord::Create(kNode).value();
  after.second.Begin(9);
  after.second.SetServed();
  after.second.Add(KeyOf(Kind::kStatePage));
  after.second.Add(KeyOf(Kind::kLifeline, 3));
  after.second.Add(KeyOf(Kind::kPidfd, 4));
  const std::string served = ChangesOf(before.first.get(), after.first.get());
  after.second.Remove(KeyOf(Kind::kPidfd, 4));
  after.second.End();
  return {InputOf(What::kNames, absl::StrJoin(names, ":")), InputOf(What::kChangedRecord, served),
          InputOf(What::kChangedRecord, ChangesOf(before.first.get(), after.first.get())),
          InputOf(What::kAnyFile, "no record")};
}

}  // namespace berth::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace berth::fuzz;
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (static_cast<What>(data[0] % 3)) {
    case What::kNames:
      ReadNames(bytes);
      break;
    case What::kChangedRecord:
      ReadChangedRecord(bytes);
      break;
    case What::kAnyFile:
      ReadFile(bytes);
      break;
  }
  return 0;
}
