// The fds that the service manager passes to a supervisor without a running daemon: their names, and the page that
// records their owners.

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
#include "common/os/memfd.h"
#include "common/os/unique_fd.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"
#include "daemon/supervisor/fd_store/service_manager.h"
#include "daemon/supervisor/fd_store/service_manager_fd_store.h"
#include "daemon/supervisor/fd_store/store_record.h"
#include "tests/fuzz/fuzz.h"

namespace berth::fuzz {
namespace {

using fd_store::Key;
using fd_store::KeyOf;
using fd_store::Kind;

constexpr uint64_t kNode = 7;
// Most names of one input that count.
constexpr size_t kMaxNames = 64;

// The first byte of an input.
enum class What : uint8_t { kNames, kChangedRecord, kAnyFile };

// A changed word of the page. The record's class defines the positions of its words.
struct Change {
  uint16_t word = 0;
  uint64_t value = 0;
} __attribute__((packed));

void Expect(bool holds, const char* what) {
  if (holds) return;
  std::cerr << what << "\n";
  std::abort();
}

// A manager that accepts every message.
absl::Status Take(const std::string&, int) { return absl::OkStatus(); }

UniqueFd AnyFd() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

void ReadNames(absl::string_view names) {
  std::vector<NamedFd> handed_over;
  for (const absl::string_view name : absl::StrSplit(names, ':')) {
    const std::optional<Key> key = ServiceManagerFdStore::KeyOfName(name);
    Expect(!key.has_value() || ServiceManagerFdStore::NameOf(*key) == name,
           "a key has another name than it was found by");
    // Leaves out names outside the daemon's: each would be reported as foreign.
    if (key.has_value() && handed_over.size() < kMaxNames) {
      handed_over.push_back({.name = std::string(name), .fd = AnyFd()});
    }
  }
  ServiceManagerFdStore::Forget(ServiceManagerFdStore::Sort(std::move(handed_over), Take), Take);
}

// A supervisor uses the page as far as possible.
void GoBy(int page) {
  absl::StatusOr<StoreRecord> record = StoreRecord::Map(page);
  if (!record.ok()) return;
  record->Check(kNode).IgnoreError();
  HeldFds held;
  for (const auto& [key, place] : record->places()) {
    // The manager passed half of them.
    if (held.size() < kMaxNames && place % 2 == 0 && ServiceManagerFdStore::Stores(key.kind))
      held.emplace(key, AnyFd());
  }
  const auto now = std::chrono::steady_clock::time_point(std::chrono::hours(1));
  ServiceManagerFdStore store(*std::move(record), Take);
  store.RecordStored(held);
  Expect(store.record().places().size() == held.size(), "the record has others than the manager");
  store.Reconcile(now, held, /*again=*/true);
  store.Put(now, KeyOf(Kind::kLifeline, 7));
  held.emplace(KeyOf(Kind::kLifeline, 7), AnyFd());
  store.Attend(now + ServiceManagerFdStore::kPause, held);
  store.Drop(now, KeyOf(Kind::kLifeline, 7));
  held.erase(KeyOf(Kind::kLifeline, 7));
  store.Attend(now + 2 * ServiceManagerFdStore::kPause, held);
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

// Returns the words that differ between a used and an unused record.
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
  const std::vector<std::string> names = {ServiceManagerFdStore::NameOf(KeyOf(fd_store::Listener::kBerthd)),
                                          ServiceManagerFdStore::NameOf(KeyOf(Kind::kStatePage)),
                                          ServiceManagerFdStore::NameOf(KeyOf(Kind::kStoreRecord)),
                                          ServiceManagerFdStore::NameOf(KeyOf(Kind::kLifeline, 0x4711)),
                                          ServiceManagerFdStore::NameOf(KeyOf(Kind::kChannel, UINT64_MAX)),
                                          ServiceManagerFdStore::NameOf(KeyOf(Kind::kChannel, UINT64_MAX)),
                                          "berth-block-1",
                                          "elsewhere"};
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
