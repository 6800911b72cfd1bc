#include "daemon/ledger/ledger_file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

using Batches = std::vector<std::string>;

const LedgerIdentity kIdentity = {.schema = 7, .node = 11, .incarnation = 13, .boot = "a-boot"};

class LedgerFileTest : public testing::Test {
 protected:
  LedgerFileTest() : path_(testing::TempDir() + "/ledger_file_test") { ::unlink(path_.c_str()); }

  // Creates a file with these batches, truncated to its end. Returns its bytes.
  std::string Make(const Batches& batches) {
    absl::StatusOr<LedgerFile> file = LedgerFile::Create(path_, kIdentity);
    EXPECT_TRUE(file.ok()) << file.status();
    for (const std::string& batch : batches) {
      EXPECT_TRUE(file->Reserve(sizeof(LedgerFrame) + batch.size()).ok());
      file->Append(batch);
    }
    EXPECT_EQ(::truncate(path_.c_str(), static_cast<off_t>(file->end())), 0);
    std::ifstream in(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void Write(const std::string& bytes) {
    // Some file systems flush a file that is truncated and written again.
    ::unlink(path_.c_str());
    std::ofstream(path_, std::ios::binary | std::ios::trunc).write(bytes.data(), bytes.size());
  }
  absl::StatusOr<LedgerFile> Open(const LedgerIdentity& identity = kIdentity) {
    return LedgerFile::Open(path_, identity);
  }
  absl::StatusOr<Batches> Read() {
    const absl::StatusOr<LedgerFile> file = Open();
    if (!file.ok()) return file.status();
    Batches batches;
    file->ForEach([&](uint64_t offset, absl::string_view batch) {
      EXPECT_EQ(file->At(offset, batch.size()), batch);
      batches.emplace_back(batch);
    });
    EXPECT_EQ(file->frames(), batches.size());
    return batches;
  }
  static bool Says(const absl::Status& status, absl::string_view text) {
    return absl::StrContains(status.message(), text);
  }

  const std::string path_;
};

const Batches kBatches = {"one", std::string(300, 'x'), "three"};

TEST_F(LedgerFileTest, AppendedBatchesAreReadBack) {
  Make(kBatches);
  EXPECT_EQ(*Read(), kBatches);
  // The file accepts further appends.
  absl::StatusOr<LedgerFile> file = Open();
  ASSERT_TRUE(file->Reserve(1000).ok());
  file->Append("four");
  EXPECT_EQ(Read()->size(), 4u);
  EXPECT_EQ(Read()->back(), "four");
}

TEST_F(LedgerFileTest, MissingFileIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(Open().status())) << Open().status();
}

TEST_F(LedgerFileTest, FileTruncatedAnywhereIsAnError) {
  const std::string whole = Make(kBatches);
  for (size_t size = 0; size < whole.size(); ++size) {
    Write(whole.substr(0, size));
    EXPECT_TRUE(absl::IsDataLoss(Open().status())) << size << ": " << Open().status();
    EXPECT_TRUE(Says(Open().status(), "truncated")) << size << ": " << Open().status();
  }
}

TEST_F(LedgerFileTest, FlippedByteIsErrorOrHarmless) {
  const std::string whole = Make(kBatches);
  int errors = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      Write(damaged);
      const absl::StatusOr<Batches> read = Read();
      // All bytes except the header's padding matter.
      const bool counts = at < offsetof(LedgerHeader, checksum) + sizeof(uint64_t) ||
                          (at >= offsetof(LedgerHeader, committed) &&
                           at < offsetof(LedgerHeader, committed) + sizeof(uint64_t)) ||
                          at >= sizeof(LedgerHeader);
      EXPECT_EQ(read.ok(), !counts) << at;
      if (read.ok()) {
        EXPECT_EQ(*read, kBatches) << at;
      }
      errors += read.ok() ? 0 : 1;
    }
  }
  EXPECT_GT(errors, 1000);
}

TEST_F(LedgerFileTest, DamageIsNamedByOffset) {
  std::string bytes = Make(kBatches);
  // Damages the second batch.
  bytes[sizeof(LedgerHeader) + 2 * sizeof(LedgerFrame) + 3 + 7] ^= 1;
  Write(bytes);
  EXPECT_TRUE(Says(Open().status(), "commit 2, at byte 211")) << Open().status();
}

TEST_F(LedgerFileTest, UncommittedAppendIsIgnored) {
  const std::string before = Make({"one"});
  const std::string after = Make({"one", "two"});
  const size_t committed = offsetof(LedgerHeader, committed);
  // The append may have stopped anywhere: the header's `committed` was not yet written.
  for (size_t size = before.size(); size <= after.size(); ++size) {
    std::string torn = after.substr(0, size);
    torn.replace(committed, sizeof(uint64_t), before, committed, sizeof(uint64_t));
    torn.resize(after.size() + 100);
    Write(torn);
    EXPECT_EQ(*Read(), Batches{"one"}) << size;
    EXPECT_EQ(Open()->torn(), size > before.size()) << size;
  }
  // The next append overwrites the unfinished one.
  absl::StatusOr<LedgerFile> file = Open();
  ASSERT_TRUE(file->Reserve(100).ok());
  file->Append("2");
  EXPECT_EQ(*Read(), (Batches{"one", "2"}));
  EXPECT_FALSE(Open()->torn());
}

TEST_F(LedgerFileTest, ForeignLedgerIsRejectedAndNamed) {
  Make(kBatches);
  const auto open_as = [&](auto change) {
    LedgerIdentity identity = kIdentity;
    change(&identity);
    return Open(identity).status();
  };
  absl::Status status = open_as([](LedgerIdentity* identity) { identity->node = 12; });
  EXPECT_TRUE(absl::IsFailedPrecondition(status) && Says(status, "another node")) << status;
  status = open_as([](LedgerIdentity* identity) { identity->incarnation = 12; });
  EXPECT_TRUE(absl::IsFailedPrecondition(status) && Says(status, "incarnation")) << status;
  status = open_as([](LedgerIdentity* identity) { identity->boot = "another-boot"; });
  EXPECT_TRUE(absl::IsFailedPrecondition(status) && Says(status, "another boot")) << status;
  status = open_as([](LedgerIdentity* identity) { identity->schema = 6; });
  EXPECT_TRUE(absl::IsFailedPrecondition(status) && Says(status, "version 1.7, and this daemon reads 1.6")) << status;
  status = open_as([](LedgerIdentity* identity) { identity->schema = 8; });
  EXPECT_TRUE(absl::IsFailedPrecondition(status) && Says(status, "version 1.7, and this daemon reads 1.8")) << status;
}

TEST_F(LedgerFileTest, NonLedgerFileIsRejected) {
  Write(std::string(4096, 'x'));
  EXPECT_TRUE(Says(Open().status(), "not a ledger")) << Open().status();
  Write("");
  EXPECT_TRUE(absl::IsDataLoss(Open().status())) << Open().status();
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  ASSERT_EQ(::symlink("/dev/null", path_.c_str()), 0);
  EXPECT_FALSE(Open().ok());
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  ASSERT_EQ(::mkdir(path_.c_str(), 0700), 0);
  EXPECT_FALSE(Open().ok());
  EXPECT_FALSE(LedgerFile::Create(path_, kIdentity).ok());
  ASSERT_EQ(::rmdir(path_.c_str()), 0);
}

TEST_F(LedgerFileTest, AnyBytesOpenOrAreRejected) {
  const std::string whole = Make(kBatches);
  std::mt19937 random(20260601);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = whole;
    for (int changes = static_cast<int>(random() % 4); changes >= 0; --changes) {
      const size_t at = random() % bytes.size();
      const size_t size = std::min<size_t>(random() % 32, bytes.size() - at);
      switch (random() % 4) {
        case 0:
          for (size_t j = 0; j < size; ++j) bytes[at + j] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, size);
          break;
        case 2:
          bytes.insert(at, whole, at / 2, size);
          break;
        case 3:
          bytes.replace(at, size, size, '\0');
          break;
      }
      if (bytes.empty()) bytes = whole;
    }
    Write(bytes);
    // Open() returns the written batches or an error; bytes after the end may have changed.
    if (const absl::StatusOr<Batches> read = Read(); read.ok()) {
      EXPECT_EQ(*read, kBatches) << i;
    }
  }
}

}  // namespace
}  // namespace berth
