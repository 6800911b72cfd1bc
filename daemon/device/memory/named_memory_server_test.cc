#include "daemon/device/memory/named_memory_server.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <berth/error.h>

#include "common/os/named_memory.h"

namespace berth {
namespace {

class NamedMemoryServerTest : public ::testing::Test {
 protected:
  NamedMemoryServerTest() {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    Start();
  }
  ~NamedMemoryServerTest() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start() {
    server_.reset();
    auto server = NamedMemoryServer::Start(folder_, 3);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  IpcHandle Create(Bytes bytes = MiB(2)) {
    const auto handle = server_->Create(bytes);
    EXPECT_TRUE(handle.ok()) << handle.status();
    return handle.value_or(IpcHandle());
  }
  // Returns a connection that sends no handle.
  UniqueFd Connect() {
    UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    const std::string path = NamedMemorySocket(folder_, 3);
    path.copy(address.sun_path, path.size());
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    return socket;
  }

  std::string folder_ = "/tmp/berth-named-XXXXXX";
  std::unique_ptr<NamedMemoryServer> server_;
};

TEST_F(NamedMemoryServerTest, HandleOpensSameMemory) {
  const IpcHandle handle = Create();
  const auto one = OpenNamedMemory(folder_, handle);
  const auto other = OpenNamedMemory(folder_, handle);
  ASSERT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
  ASSERT_EQ(::pwrite(one->get(), "x", 1, 7), 1);
  char read = 0;
  ASSERT_EQ(::pread(other->get(), &read, 1, 7), 1);
  EXPECT_EQ(read, 'x');
  struct stat info;
  ASSERT_EQ(::fstat(other->get(), &info), 0);
  EXPECT_EQ(info.st_size, 2 << 20);
}

TEST_F(NamedMemoryServerTest, HolderCannotChangeSizeOrSeals) {
  const auto fd = OpenNamedMemory(folder_, Create());
  ASSERT_TRUE(fd.ok()) << fd.status();
  char byte = 0;
  const struct {
    const char* name;
    std::function<int()> attempt;
  } attempts[] = {
      {"truncate", [&] { return ::ftruncate(fd->get(), 0); }},
      {"shrink", [&] { return ::ftruncate(fd->get(), 4096); }},
      {"grow", [&] { return ::ftruncate(fd->get(), 4 << 20); }},
      {"write past the end", [&] { return static_cast<int>(::pwrite(fd->get(), &byte, 1, 2 << 20)); }},
      {"allocate past the end", [&] { return ::fallocate(fd->get(), 0, 0, 4 << 20); }},
      {"seal against writing", [&] { return ::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE); }},
  };
  for (const auto& attempt : attempts) {
    EXPECT_EQ(attempt.attempt(), -1) << attempt.name;
    EXPECT_EQ(errno, EPERM) << attempt.name;
  }
  struct stat info;
  ASSERT_EQ(::fstat(fd->get(), &info), 0);
  EXPECT_EQ(info.st_size, 2 << 20);
}

TEST_F(NamedMemoryServerTest, RunFolderHoldsNoMemory) {
  Create(MiB(64));
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder_)) {
    EXPECT_FALSE(file.is_regular_file()) << file.path();
  }
  struct stat info;
  ASSERT_EQ(::stat(NamedMemoryFolder(folder_).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0711u) << "passed through, and not listed";
  ASSERT_EQ(::stat(NamedMemorySocket(folder_, 3).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666u) << "for users other than the daemon's";
}

TEST_F(NamedMemoryServerTest, RemovedMemoryIsNotFoundButStaysOpen) {
  const IpcHandle handle = Create();
  const auto fd = OpenNamedMemory(folder_, handle);
  server_->Remove(handle);
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder_, handle).status()));
  EXPECT_TRUE(absl::IsNotFound(server_->Open(handle).status()));
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(::pwrite(fd->get(), "x", 1, 0), 1);
}

TEST_F(NamedMemoryServerTest, HandleOfOtherServerIsNotFound) {
  const IpcHandle handle = Create();
  IpcHandle guess = MakeNamedHandle(3, RandomSecret());
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder_, guess).status()));
  guess = MakeNamedHandle(4, RandomSecret());
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder_, guess).status()));
  Start();
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder_, handle).status())) << "a server's memory ends with it";
  server_.reset();
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder_, handle).status()));
  EXPECT_TRUE(std::filesystem::is_empty(NamedMemoryFolder(folder_)));
}

TEST_F(NamedMemoryServerTest, SilentOrInvalidConnectionsDelayNoOthers) {
  const IpcHandle handle = Create();
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < 3 * NamedMemoryServer::kConnections; ++i) silent.push_back(Connect());
  EXPECT_TRUE(OpenNamedMemory(folder_, handle).ok());
  const struct {
    const char* name;
    std::string sent;
  } nonsense[] = {{"short", "x"}, {"zeros", std::string(64, '\0')}, {"long", std::string(65, 'x')}, {"empty", ""}};
  for (const auto& [name, sent] : nonsense) {
    const UniqueFd socket = Connect();
    EXPECT_EQ(::send(socket.get(), sent.data(), sent.size(), MSG_NOSIGNAL), static_cast<ssize_t>(sent.size())) << name;
    silent.push_back(UniqueFd(::dup(socket.get())));
  }
  EXPECT_TRUE(OpenNamedMemory(folder_, handle).ok());
}

TEST_F(NamedMemoryServerTest, ConcurrentOpensSucceed) {
  const IpcHandle handle = Create();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 100; ++j) {
        const auto fd = OpenNamedMemory(folder_, handle);
        EXPECT_TRUE(fd.ok()) << fd.status();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace berth
