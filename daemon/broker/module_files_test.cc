#include "daemon/broker/module_files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/os/memfd.h"
#include "common/sha256.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

constexpr char kText[] = ".version 8.0 // a module";

class ModuleFilesTest : public ::testing::Test {
 protected:
  ModuleFilesTest() {
    char folder[] = "/tmp/berth-modules-XXXXXX";
    folder_ = ::mkdtemp(folder);
  }
  ~ModuleFilesTest() override {
    files_.reset();
    fs::remove_all(folder_);
  }

  std::string state() const { return folder_ + "/state"; }
  void Open() {
    files_.reset();
    auto files = ModuleFiles::Open(state());
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
  }
  static core::ModuleRecord RecordOf(uint32_t uid, uint8_t key, const std::string& text) {
    core::ModuleRecord record = {.tenant = {.uid = uid, .container = "/c"},
                                 .architecture = "compute_90",
                                 .compiler = "NVRTC 13.0",
                                 .label = "sphere",
                                 .bytes = Bytes(text.size()),
                                 .content = Sha256Of(text),
                                 .create_time = absl::FromUnixSeconds(1'000'000)};
    record.key.bits[0] = key;
    return record;
  }
  core::ModuleRecord Store(uint32_t uid, uint8_t key, const std::string& text = kText) {
    const core::ModuleRecord record = RecordOf(uid, key, text);
    const UniqueFd memory = *CreateMemfd("test", 0);
    EXPECT_EQ(::write(memory.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    const absl::Status stored = files_->Store(record, memory.get());
    EXPECT_TRUE(stored.ok()) << stored;
    return record;
  }
  static std::string ReadAll(int fd) {
    std::string text(1000, '\0');
    text.resize(static_cast<size_t>(::pread(fd, text.data(), text.size(), 0)));
    return text;
  }
  // Returns the only module file that exists.
  fs::path File() const {
    for (const auto& entry : fs::directory_iterator(state() + "/modules")) {
      if (entry.path().extension() == ".module") return entry.path();
    }
    return {};
  }
  void Change(int64_t at, char value) {
    const UniqueFd file(::open(File().c_str(), O_RDWR | O_CLOEXEC));
    const off_t offset = at < 0 ? ::lseek(file.get(), at, SEEK_END) : at;
    ASSERT_EQ(::pwrite(file.get(), &value, 1, offset), 1);
  }

  std::string folder_;
  std::unique_ptr<ModuleFiles> files_;
};

TEST_F(ModuleFilesTest, StoredModuleIsFoundAgain) {
  Open();
  const core::ModuleRecord stored = Store(1000, 1);
  Open();
  const ModuleFiles::Contents contents = files_->Scan();
  EXPECT_EQ(contents.corrupt, 0u);
  ASSERT_EQ(contents.records.size(), 1u);
  const core::ModuleRecord& found = contents.records[0];
  EXPECT_EQ(found.tenant, stored.tenant);
  EXPECT_EQ(found.key, stored.key);
  EXPECT_EQ(found.label, "sphere");
  EXPECT_EQ(found.content, stored.content);
  EXPECT_EQ(found.create_time, stored.create_time);
  const absl::StatusOr<UniqueFd> loaded = files_->Load(found);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(ReadAll(loaded->get()), kText);
}

TEST_F(ModuleFilesTest, LoadedModuleIsSealed) {
  Open();
  const UniqueFd loaded = *files_->Load(Store(1000, 1));
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
  EXPECT_EQ(::fcntl(loaded.get(), F_GET_SEALS) & kSeals, kSeals);
  EXPECT_LT(::pwrite(loaded.get(), "x", 1, 0), 0);
  EXPECT_EQ(::mmap(nullptr, 1, PROT_WRITE, MAP_SHARED, loaded.get(), 0), MAP_FAILED);
}

TEST_F(ModuleFilesTest, FolderIsPrivate) {
  ::umask(0);
  Open();
  Store(1000, 1);
  struct stat info;
  for (const std::string& path : {state(), state() + "/modules"}) {
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u) << path;
  }
  ASSERT_EQ(::stat(File().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(ModuleFilesTest, ExistingFolderKeepsItsMode) {
  ::umask(0);
  for (const mode_t mode : {0700, 0711, 0750, 0755, 01755}) {
    ASSERT_EQ(::mkdir(state().c_str(), 0700), 0);
    ASSERT_EQ(::chmod(state().c_str(), mode), 0);
    ASSERT_EQ(::mkdir((state() + "/modules").c_str(), 0755), 0);
    Open();
    struct stat info;
    ASSERT_EQ(::stat(state().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, mode);
    ASSERT_EQ(::stat((state() + "/modules").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0700u);
    files_.reset();
    std::filesystem::remove_all(state());
  }
}

TEST_F(ModuleFilesTest, FolderWritableByOthersIsRejectedUntouched) {
  for (const mode_t mode : {0720, 0702, 0770, 0777, 01777, 02775}) {
    ASSERT_EQ(::mkdir(state().c_str(), 0700), 0);
    ASSERT_EQ(::chmod(state().c_str(), mode), 0);
    const absl::Status refused = ModuleFiles::Open(state()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(refused.message().find(state()), absl::string_view::npos) << refused;
    struct stat info;
    ASSERT_EQ(::stat(state().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, mode);
    EXPECT_TRUE(std::filesystem::is_empty(state()));
    ASSERT_EQ(::rmdir(state().c_str()), 0);
  }
}

TEST_F(ModuleFilesTest, FolderOfOtherUserIsRejected) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: gives a folder to another user";
  ASSERT_EQ(::mkdir(state().c_str(), 0700), 0);
  ASSERT_EQ(::chown(state().c_str(), 1001, 1001), 0);
  EXPECT_EQ(ModuleFiles::Open(state()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ModuleFilesTest, LinkInsteadOfFolderIsRejected) {
  ASSERT_EQ(::mkdir((folder_ + "/elsewhere").c_str(), 0700), 0);
  ASSERT_EQ(::symlink((folder_ + "/elsewhere").c_str(), state().c_str()), 0);
  EXPECT_FALSE(ModuleFiles::Open(state()).ok());
}

TEST_F(ModuleFilesTest, SecondDaemonIsRejected) {
  Open();
  EXPECT_EQ(ModuleFiles::Open(state()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ModuleFilesTest, ChangedModuleIsDetectedOnLoad) {
  Open();
  const core::ModuleRecord record = Store(1000, 1);
  Change(-3, '!');
  EXPECT_EQ(files_->Scan().records.size(), 1u) << "its record is whole";
  EXPECT_TRUE(absl::IsDataLoss(files_->Load(record).status()));
}

TEST_F(ModuleFilesTest, ChangedRecordIsDetectedOnScanAndRemoved) {
  for (const int64_t at : {0, 8, 12, 20, 60, 100}) {
    Open();
    Store(1000, 1);
    Change(at, '\x7f');
    const ModuleFiles::Contents contents = files_->Scan();
    EXPECT_EQ(contents.corrupt, 1u) << at;
    EXPECT_TRUE(contents.records.empty()) << at;
    EXPECT_TRUE(File().empty()) << at;
  }
}

TEST_F(ModuleFilesTest, TruncatedFileIsDetected) {
  for (const uintmax_t size : {uintmax_t{0}, uintmax_t{10}, uintmax_t{80}, uintmax_t{230}}) {
    Open();
    Store(1000, 1);
    ASSERT_LT(size, fs::file_size(File()));
    fs::resize_file(File(), size);
    EXPECT_EQ(files_->Scan().corrupt, 1u) << size;
  }
}

TEST_F(ModuleFilesTest, FileUnderOtherTenantsNameIsRejected) {
  Open();
  const core::ModuleRecord mine = Store(1000, 1);
  const fs::path my_file = File();
  const core::ModuleRecord other = RecordOf(1001, 1, kText);
  files_->Drop(mine);
  Store(1001, 1, "evil");
  fs::rename(File(), my_file);
  EXPECT_TRUE(absl::IsDataLoss(files_->Load(mine).status()));
  EXPECT_TRUE(absl::IsDataLoss(files_->Load(other).status())) << "its file is gone";
  EXPECT_EQ(files_->Scan().corrupt, 1u);
}

TEST_F(ModuleFilesTest, DroppedModuleIsGone) {
  Open();
  const core::ModuleRecord record = Store(1000, 1);
  files_->Drop(record);
  files_->Drop(record);
  EXPECT_TRUE(files_->Scan().records.empty());
}

TEST_F(ModuleFilesTest, LeastRecentlyUsedModuleComesFirst) {
  Open();
  const core::ModuleRecord first = Store(1000, 1);
  const fs::path path = File();
  Store(1000, 2);
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(1));
  EXPECT_EQ(files_->Scan().records.at(0).key, first.key);
  // A read counts as a use.
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(1));
  ASSERT_TRUE(files_->Load(first).ok());
  for (const auto& entry : fs::directory_iterator(state() + "/modules")) {
    if (entry.path() != path && entry.path().extension() == ".module") {
      fs::last_write_time(entry.path(), fs::last_write_time(path) - std::chrono::hours(1));
    }
  }
  EXPECT_EQ(files_->Scan().records.at(1).key, first.key);
}

TEST_F(ModuleFilesTest, SealedCopyHasDigestOfContent) {
  const std::string text(700'000, 'm');
  const UniqueFd memory = *CreateMemfd("test", 0);
  ASSERT_EQ(::write(memory.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  const absl::StatusOr<SealedModule> sealed = SealModule(memory.get(), 0, Bytes(text.size()));
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(sealed->content, Sha256Of(text));
  EXPECT_TRUE(absl::IsDataLoss(SealModule(memory.get(), 0, Bytes(text.size() + 1)).status()));
}

}  // namespace
}  // namespace berth
