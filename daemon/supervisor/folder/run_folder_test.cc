#include "daemon/supervisor/folder/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/unique_fd.h"
#include "daemon/ledger/ledger_file.h"
#include "daemon/supervisor/fd_store/node_record.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() {
    root_ = "/tmp/berth" + std::string(6, 'X');
    ::mkdtemp(root_.data());
    path_ = root_ + "/run";
  }
  ~RunFolderTest() override { std::filesystem::remove_all(root_); }

  std::string root_;
  std::string path_;
};

TEST_F(RunFolderTest, SecondDaemonIsRejectedWithFirstPid) {
  {
    const auto first = RunFolder::Take(path_);
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::Status second = RunFolder::Take(path_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(second));
    EXPECT_THAT(std::string(second.message()),
                AllOf(HasSubstr(path_), HasSubstr(absl::StrCat("pid ", ::getpid()))));
  }
  EXPECT_TRUE(RunFolder::Take(path_).ok());
}

TEST_F(RunFolderTest, NodeIdIsDrawnOnce) {
  const uint64_t first = RunFolder::Take(path_)->node();
  EXPECT_NE(first, 0u);
  EXPECT_EQ(RunFolder::Take(path_)->node(), first);
}

TEST_F(RunFolderTest, BrokenNodeIdIsDrawnAgain) {
  const uint64_t first = RunFolder::Take(path_)->node();
  std::ofstream(path_ + "/node") << "abc";
  const uint64_t second = RunFolder::Take(path_)->node();
  EXPECT_NE(second, first);
  EXPECT_EQ(RunFolder::Take(path_)->node(), second);
}

TEST_F(RunFolderTest, SocketsReplaceLeftoversAndAreRemovedWithFolder) {
  {
    auto folder = RunFolder::Take(path_);
    ASSERT_TRUE(folder.ok());
    std::ofstream(path_ + "/berthd.sock") << "left by another";
    const auto sockets = folder->Listen();
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    EXPECT_EQ(sockets->size(), 5);
    EXPECT_TRUE(std::filesystem::is_socket(path_ + "/berthd.sock"));
    const RunFolder moved = *std::move(folder);
    EXPECT_TRUE(std::filesystem::is_socket(path_ + "/attach.sock"));
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + "/berthd.sock"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/admin.sock"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/attach.sock"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/observer.sock"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/admin-attach.sock"));
}

TEST_F(RunFolderTest, SocketsStayWhenInheritorFails) {
  auto first = RunFolder::Take(path_);
  ASSERT_TRUE(first.ok());
  const auto sockets = first->Listen();
  ASSERT_TRUE(sockets.ok());
  // As if the process had been killed.
  first->LeaveSockets();
  ASSERT_TRUE(RunFolder::Inherit(path_, *first->ShareLock(), *first->ShareClaim(), first->node()).ok());
  EXPECT_TRUE(std::filesystem::is_socket(path_ + "/admin.sock"));
  {
    auto next = RunFolder::Inherit(path_, *first->ShareLock(), *first->ShareClaim(), first->node());
    ASSERT_TRUE(next.ok());
    next->KeepSockets();
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + "/admin.sock"));
}

TEST_F(RunFolderTest, UnopenedSocketIsMadeAgainByInheritor) {
  auto first = RunFolder::Take(path_);
  ASSERT_TRUE(first.ok());
  {
    auto sockets = first->Listen();
    ASSERT_TRUE(sockets.ok());
    first->LeaveSockets();
    // The process was killed before any other process had a duplicate of the first socket.
    sockets->erase(sockets->begin());
    auto next = RunFolder::Inherit(path_, *first->ShareLock(), *first->ShareClaim(), first->node());
    ASSERT_TRUE(next.ok());
    next->KeepSockets();
    RunFolder::Restored restored;
    ASSERT_TRUE(next->Restore({}, &restored).ok());
    ASSERT_EQ(restored.sockets.size(), 1u);
    EXPECT_EQ(restored.sockets[0].listener, fd_store::Listener::kBerthd);
  }
}

TEST_F(RunFolderTest, ClientsReachSocketsInRemadeFolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives a socket to another group";
  constexpr gid_t kClients = 12346;
  EXPECT_EQ(FindGroup("12346"), kClients);
  EXPECT_EQ(FindGroup("no-such-group"), std::nullopt);
  auto folder = RunFolder::Take(path_, {.clients = kClients});
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(folder->Listen({.clients = kClients}).ok());
  const auto expect_reached = [&] {
    struct stat info = {};
    ASSERT_EQ(::stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_gid, kClients);
    EXPECT_EQ(info.st_mode & 0777, 0750u);
    for (const char* const name : {"/berthd.sock", "/attach.sock"}) {
      ASSERT_EQ(::stat((path_ + name).c_str(), &info), 0) << name;
      EXPECT_EQ(info.st_gid, kClients) << name;
      EXPECT_EQ(info.st_mode & 0777, 0660u) << name;
    }
  };
  expect_reached();
  std::filesystem::remove_all(path_);
  RunFolder::Restored restored;
  ASSERT_TRUE(folder->Restore({.clients = kClients}, &restored).ok());
  expect_reached();
}

TEST_F(RunFolderTest, ObserverReachesOnlyItsSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives a socket to another group";
  constexpr gid_t kObservers = 12345;
  auto folder = RunFolder::Take(path_, {.observers = kObservers});
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(folder->Listen({.observers = kObservers}).ok());
  const auto info = [&](const std::string& name) {
    struct stat info = {};
    EXPECT_EQ(::stat((path_ + name).c_str(), &info), 0) << name;
    return info;
  };
  EXPECT_EQ(info("").st_mode & 07, 01u) << "they come through the folder, and see no names there";
  EXPECT_EQ(info("/observer.sock").st_mode & 0777, 0660u);
  EXPECT_EQ(info("/observer.sock").st_gid, kObservers);
  for (const char* const name : {"/admin.sock", "/admin-attach.sock"}) {
    EXPECT_EQ(info(name).st_mode & 0777, 0600u) << name;
  }
  for (const char* const name : {"/berthd.sock", "/attach.sock", "/admin.sock", "/admin-attach.sock"}) {
    EXPECT_NE(info(name).st_gid, kObservers) << name;
    EXPECT_EQ(info(name).st_mode & 07, 0u) << name;
  }
}

TEST_F(RunFolderTest, FailedSocketLeavesNoneBehind) {
  {
    auto folder = RunFolder::Take(path_);
    ASSERT_TRUE(folder.ok());
    std::filesystem::create_directory(path_ + "/attach.sock");
    EXPECT_THAT(std::string(folder->Listen().status().message()), HasSubstr(path_ + "/attach.sock"));
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + "/berthd.sock"));
}

TEST_F(RunFolderTest, PathIsAbsoluteAndAtMost89Bytes) {
  for (const std::string& path :
       {std::string(), std::string("run"), root_ + "/" + std::string(89 - root_.size(), 'x')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RunFolder::Take(path).status())) << path;
  }
  const std::string longest = root_ + "/" + std::string(89 - root_.size() - 1, 'x');
  auto folder = RunFolder::Take(longest);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(folder->Listen().ok());
}

TEST_F(RunFolderTest, ForeignFolderIsRejected) {
  std::ofstream file(path_);
  EXPECT_TRUE(absl::IsFailedPrecondition(RunFolder::Take(path_).status()));
  std::filesystem::create_directory_symlink(root_, root_ + "/link");
  EXPECT_TRUE(absl::IsFailedPrecondition(RunFolder::Take(root_ + "/link").status()));
  if (::geteuid() == 0) {
    std::filesystem::create_directory(root_ + "/other");
    ASSERT_EQ(::chown((root_ + "/other").c_str(), 12345, 12345), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(RunFolder::Take(root_ + "/other").status()));
  }
}

TEST_F(RunFolderTest, ExistingFolderKeepsItsMode) {
  std::filesystem::create_directory(path_);
  ASSERT_EQ(::chmod(path_.c_str(), 0711), 0);
  ASSERT_TRUE(RunFolder::Take(path_).ok());
  struct stat info;
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0711u);
}

TEST_F(RunFolderTest, FolderThatOthersCanWriteIsRejected) {
  std::filesystem::create_directory(path_);
  for (const mode_t mode : {0720, 0702, 0777, 01777, 02775}) {
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    const absl::Status status = RunFolder::Take(path_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path_), HasSubstr("chmod go-w")));
    EXPECT_TRUE(std::filesystem::is_empty(path_));
  }
  ASSERT_EQ(::chmod(path_.c_str(), 0700), 0);
  {
    auto folder = RunFolder::Take(path_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    // A daemon that serves continues.
    ASSERT_EQ(::chmod(path_.c_str(), 0777), 0);
    RunFolder::Restored restored;
    EXPECT_TRUE(folder->Restore({}, &restored).ok());
  }
  ASSERT_EQ(::chmod(path_.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(root_.c_str(), 0777), 0);
  EXPECT_THAT(std::string(RunFolder::Take(path_).status().message()), HasSubstr(root_ + ", which has mode 0777"));
  ASSERT_EQ(::chmod(root_.c_str(), 01777), 0);
  EXPECT_TRUE(RunFolder::Take(path_).ok());
}

// A file that can be deleted, and whether Restore() recreates it.
struct Deletion {
  const char* name;
  bool folder, lock, node;
  size_t sockets;
};

class RestoreTest : public RunFolderTest, public ::testing::WithParamInterface<Deletion> {};

INSTANTIATE_TEST_SUITE_P(Names, RestoreTest,
                         ::testing::Values(Deletion{"berthd.lock", false, true, false, 0},
                                           Deletion{"node", false, false, true, 0},
                                           Deletion{"berthd.sock", false, false, false, 1},
                                           Deletion{"admin.sock", false, false, false, 1},
                                           Deletion{"attach.sock", false, false, false, 1},
                                           Deletion{"observer.sock", false, false, false, 1},
                                           Deletion{"admin-attach.sock", false, false, false, 1},
                                           Deletion{"", true, true, true, 5}));

TEST_P(RestoreTest, DeletedFileIsRestored) {
  auto folder = RunFolder::Take(path_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  auto sockets = folder->Listen();
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  RunFolder::Restored nothing;
  ASSERT_TRUE(folder->Restore({}, &nothing).ok());
  EXPECT_FALSE(nothing.anything());
  const Deletion& deletion = GetParam();
  // Renames the file instead of deleting it, so that its inode is not reused.
  std::filesystem::rename(path_ + "/" + deletion.name, root_ + "/gone");
  RunFolder::Restored restored;
  const absl::Status status = folder->Restore({}, &restored);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(restored.folder, deletion.folder);
  EXPECT_EQ(restored.lock, deletion.lock);
  EXPECT_EQ(restored.node, deletion.node);
  EXPECT_EQ(restored.sockets.size(), deletion.sockets);
  EXPECT_TRUE(std::filesystem::exists(path_ + "/" + deletion.name));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/berthd.lock.new"));
  EXPECT_THAT(std::string(RunFolder::Take(path_).status().message()), HasSubstr(absl::StrCat("pid ", ::getpid())));
}

TEST_F(RunFolderTest, NodeIdSurvivesDeletedFile) {
  uint64_t node = 0;
  {
    auto folder = RunFolder::Take(path_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    node = folder->node();
    std::filesystem::remove(path_ + "/node");
    RunFolder::Restored restored;
    ASSERT_TRUE(folder->Restore({}, &restored).ok());
  }
  EXPECT_EQ(RunFolder::Take(path_)->node(), node);
}

TEST_F(RunFolderTest, ChangedNodeIdIsRestored) {
  auto folder = RunFolder::Take(path_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  for (const std::string& content : {std::string(), std::string(8, '\0'), std::string("abc"), std::string(8, 'x'),
                                     std::string(100, 'x')}) {
    std::ofstream(path_ + "/node", std::ios::binary | std::ios::trunc) << content;
    RunFolder::Restored restored;
    ASSERT_TRUE(folder->Restore({}, &restored).ok());
    EXPECT_TRUE(restored.node);
    uint64_t node = 0;
    std::ifstream(path_ + "/node", std::ios::binary).read(reinterpret_cast<char*>(&node), sizeof(node));
    EXPECT_EQ(node, folder->node());
    RunFolder::Restored nothing;
    ASSERT_TRUE(folder->Restore({}, &nothing).ok());
    EXPECT_FALSE(nothing.anything());
  }
}

// Which of the three files have the right node id, and whether a daemon finds it.
struct Witnesses {
  bool node, record, ledger, finds;
};

TEST_F(RunFolderTest, NodeIdIsFoundInRecordAndLedger) {
  for (const Witnesses& has : {Witnesses{true, false, false, true}, Witnesses{false, true, false, true},
                               Witnesses{false, false, true, true}, Witnesses{true, true, false, true},
                               Witnesses{false, true, true, true}, Witnesses{false, false, false, false}}) {
    SCOPED_TRACE(absl::StrCat(has.node, has.record, has.ledger));
    std::filesystem::remove_all(path_);
    const uint64_t node = RunFolder::Take(path_)->node();
    for (const bool replaced : {false, true}) {
      ASSERT_TRUE(NodeRecord::Open(path_)->Begin(node, 1, /*begun=*/true).ok());
      ASSERT_TRUE(LedgerFile::Create(path_ + "/ledger", {.schema = 1, .node = node, .boot = "boot"}).ok());
      const std::string other(replaced ? 8 : 0, 'x');
      if (!has.record) std::ofstream(path_ + "/record", std::ios::trunc) << other;
      if (!has.ledger) std::ofstream(path_ + "/ledger", std::ios::trunc) << other;
      if (!has.node) std::ofstream(path_ + "/node", std::ios::trunc) << other;
      EXPECT_EQ(RunFolder::Take(path_)->node() == node, has.finds);
      EXPECT_EQ(RunFolder::Take(path_)->node() == node, has.finds) << "the next daemon";
      if (!has.finds) break;
    }
  }
}

TEST_F(RunFolderTest, ServedNodeIsRejectedAtOtherPath) {
  const std::string copy = root_ + "/copy";
  auto first = RunFolder::Take(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(NodeRecord::Open(path_)->Begin(first->node(), 1, /*begun=*/true).ok());
  ASSERT_TRUE(LedgerFile::Create(path_ + "/ledger", {.schema = 1, .node = first->node(), .boot = "boot"}).ok());
  for (const char* const name : {"node", "record", "ledger"}) {
    SCOPED_TRACE(name);
    std::filesystem::create_directory(copy);
    std::filesystem::copy_file(path_ + "/" + name, copy + "/" + name);
    const absl::Status second = RunFolder::Take(copy).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
    EXPECT_THAT(std::string(second.message()), AllOf(HasSubstr(copy), HasSubstr(absl::StrCat("pid ", ::getpid()))));
    // The message's way out.
    std::filesystem::remove(copy + "/" + name);
    const auto other = RunFolder::Take(copy);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_NE(other->node(), first->node());
    std::filesystem::remove_all(copy);
  }
}

TEST_F(RunFolderTest, InheritorsClaimOnNodeOutlastsFirst) {
  auto first = RunFolder::Take(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  std::filesystem::rename(path_, root_ + "/moved");
  auto next = RunFolder::Inherit(path_, *first->ShareLock(), *first->ShareClaim(), first->node());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(next->node_claimed());
  UniqueFd stored = *next->ShareNodeClaim();
  {
    const RunFolder ended = *std::move(first);
    const RunFolder ended_too = *std::move(next);
  }
  // As a broker's duplicate, after the supervisor's death.
  EXPECT_TRUE(absl::IsFailedPrecondition(RunFolder::Take(root_ + "/moved").status()));
  stored.reset();
  EXPECT_TRUE(RunFolder::Take(root_ + "/moved").ok());
}

TEST_F(RunFolderTest, SecondTakeIsRejectedWithoutLockFile) {
  auto first = RunFolder::Take(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  std::filesystem::remove(path_ + "/berthd.lock");
  EXPECT_TRUE(absl::IsFailedPrecondition(RunFolder::Take(path_).status()));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/berthd.lock"));
  std::filesystem::remove_all(path_);
  EXPECT_TRUE(absl::IsFailedPrecondition(RunFolder::Take(path_).status()));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(RunFolderTest, ForeignLockAndSocketsAreLeftAlone) {
  {
    auto folder = RunFolder::Take(path_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    const auto listening = folder->Listen();
    ASSERT_TRUE(listening.ok()) << listening.status();
    // As a daemon in another network namespace may, in the moment before the lock file is recreated.
    std::filesystem::remove(path_ + "/berthd.lock");
    const UniqueFd lock(::open((path_ + "/berthd.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
    std::filesystem::remove(path_ + "/admin.sock");
    std::ofstream(path_ + "/admin.sock") << "another's";
    RunFolder::Restored restored;
    EXPECT_TRUE(absl::IsFailedPrecondition(folder->Restore({}, &restored)));
    EXPECT_FALSE(restored.anything());
    EXPECT_TRUE(std::filesystem::is_regular_file(path_ + "/admin.sock"));
  }
  EXPECT_TRUE(std::filesystem::exists(path_ + "/admin.sock")) << "it is not the daemon's to remove";
  EXPECT_FALSE(std::filesystem::exists(path_ + "/berthd.sock"));
}

}  // namespace
}  // namespace berth
