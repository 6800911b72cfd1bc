// Handles that are forged, stale or another client's: each gets its reason, and nothing changes.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/os/unique_fd.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/peer_process.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

using Memory = v1::MemoryService::Stub;

class HandlesTest : public ::testing::Test {
 protected:
  HandlesTest()
      : daemon_({.flags = {"--host-devices=2"}}),
        owner_(RawClient::Open(daemon_.folder())),
        stranger_(RawClient::Open(daemon_.folder())) {
    handle_ = Allocate();
    // The worker closes its fd after the block exists.
    Accounts last;
    EXPECT_TRUE(daemon_.AccountsBecome([&](const Accounts& now) { return std::exchange(last, now) == now; }));
  }

  v1::BlockHandle Allocate() {
    v1::AllocateBlockRequest request;
    *request.mutable_request() = owner_.NextTag();
    request.set_bytes(1);
    const v1::AllocateBlockResponse response = Must(owner_.Call(&Memory::AllocateBlock, request));
    // A recall of an earlier block may come first.
    if (!owner_.ReceiveBlock().ok()) Must(owner_.ReceiveBlock().status(), "the fd");
    import_ = response.import();
    return response.block().handle();
  }
  absl::Status Import(RawClient& client, const v1::BlockHandle& handle) {
    v1::ImportBlockRequest request;
    *request.mutable_request() = client.NextTag();
    *request.mutable_handle() = handle;
    return client.Call(&Memory::ImportBlock, request).status();
  }
  absl::Status Grant(RawClient& client, const v1::BlockHandle& handle) {
    v1::GrantBlockRequest request;
    *request.mutable_request() = client.NextTag();
    *request.mutable_handle() = handle;
    request.set_session(stranger_.credentials().session.value());
    return client.Call(&Memory::GrantBlock, request).status();
  }
  absl::Status Free(RawClient& client, const v1::BlockHandle& handle, bool let_go = false) {
    v1::FreeBlockRequest request;
    *request.mutable_request() = client.NextTag();
    *request.mutable_handle() = handle;
    if (let_go) request.add_let_go(import_);
    return client.Call(&Memory::FreeBlock, request).status();
  }

  TestDaemon daemon_;
  RawClient owner_;
  RawClient stranger_;
  v1::BlockHandle handle_;
  uint64_t import_ = 0;
};

TEST_F(HandlesTest, ForgedHandleFieldIsRejectedWithItsReason) {
  struct Row {
    const char* field;
    std::function<void(v1::BlockHandle&)> forge;
    // `import`: reason for an import; `own`: for a grant and a free by the owner. Empty `why`: a refusal without an
    // explanation.
    Reason import;
    Reason own;
    const char* why;
  };
  const std::vector<Row> rows = {
      {"node", [](auto& handle) { handle.set_node(handle.node() + 1); }, Reason::kStale, Reason::kStale,
       "of another node"},
      {"incarnation", [](auto& handle) { handle.set_incarnation(handle.incarnation() ^ 1); }, Reason::kStale,
       Reason::kStale, "of another incarnation of this node"},
      {"device", [](auto& handle) { handle.set_device_uuid("HOST-1"); }, Reason::kDenied, Reason::kStale,
       "of another generation"},
      {"no device", [](auto& handle) { handle.set_device_uuid("GPU-none"); }, Reason::kDenied, Reason::kStale,
       "of another generation"},
      {"block", [](auto& handle) { handle.set_block(handle.block() + 1); }, Reason::kDenied,
       Reason::kNotFound, ""},
      {"generation", [](auto& handle) { handle.set_generation(handle.generation() + 1); }, Reason::kDenied,
       Reason::kStale, "of another generation"},
      {"block generation", [](auto& handle) { handle.set_block_generation(handle.block_generation() + 1); },
       Reason::kDenied, Reason::kStale, "of another generation"},
  };
  const Accounts before = daemon_.TakeAccounts();
  for (const Row& row : rows) {
    v1::BlockHandle forged = handle_;
    row.forge(forged);
    const std::map<std::string, std::string> why = *row.why == '\0'
                                                       ? std::map<std::string, std::string>{}
                                                       : std::map<std::string, std::string>{{"why", row.why}};
    const auto named_values = [&](Reason reason) {
      return reason == Reason::kStale ? why : std::map<std::string, std::string>{};
    };
    EXPECT_TRUE(Refused(Import(owner_, forged), row.import, named_values(row.import))) << row.field;
    EXPECT_TRUE(Refused(Grant(owner_, forged), row.own, named_values(row.own))) << row.field;
    EXPECT_TRUE(Refused(Free(owner_, forged), row.own, named_values(row.own))) << row.field;
  }
  EXPECT_TRUE(daemon_.AccountsReturnTo(before));
  EXPECT_TRUE(Ok(Import(owner_, handle_))) << "the true one is what it was";
}

TEST_F(HandlesTest, TrueHandleGivesStrangerNothing) {
  const Accounts before = daemon_.TakeAccounts();
  EXPECT_TRUE(Refused(Import(stranger_, handle_), Reason::kDenied));
  EXPECT_TRUE(Refused(Grant(stranger_, handle_), Reason::kNotFound));
  EXPECT_TRUE(Refused(Free(stranger_, handle_), Reason::kNotFound));
  EXPECT_TRUE(daemon_.AccountsReturnTo(before));
  // The grant is the right to import, and nothing more.
  EXPECT_TRUE(Ok(Grant(owner_, handle_)));
  EXPECT_TRUE(Ok(Import(stranger_, handle_)));
  EXPECT_TRUE(Refused(Grant(stranger_, handle_), Reason::kNotFound));
  EXPECT_TRUE(Refused(Free(stranger_, handle_), Reason::kNotFound));
}

TEST_F(HandlesTest, HandleOfFreedBlockStaysInvalid) {
  EXPECT_TRUE(Ok(Free(owner_, handle_)));
  // Still mapped: its owner is told so, and no client gets the block any more.
  EXPECT_TRUE(Refused(Free(owner_, handle_), Reason::kStale, {{"why", "freed already"}}));
  EXPECT_TRUE(Refused(Import(owner_, handle_), Reason::kDenied));
  const v1::BlockHandle next = Allocate();
  EXPECT_NE(next.block(), handle_.block());
  EXPECT_GT(next.block_generation(), handle_.block_generation());
  // The old id with the new generation is no valid handle either.
  v1::BlockHandle mixed = handle_;
  mixed.set_block_generation(next.block_generation());
  EXPECT_TRUE(Refused(Import(owner_, mixed), Reason::kDenied));
  EXPECT_TRUE(Ok(Free(owner_, next, /*let_go=*/true)));
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 1; }));
  EXPECT_TRUE(Refused(Free(owner_, next), Reason::kNotFound));
}

TEST_F(HandlesTest, HandleOfLostMemoryIsStaleAndFreedByOwner) {
  EXPECT_TRUE(Ok(Grant(owner_, handle_)));
  Must(daemon_.inspector().ResetDevice(0));
  ASSERT_TRUE(Eventually([&] {
    const auto devices = Must(daemon_.inspector().ListDevices());
    return devices.devices(0).generation() == 2 && devices.devices(0).state() == v1::Device::READY;
  }));
  const Accounts before = daemon_.TakeAccounts();
  EXPECT_TRUE(Refused(Import(stranger_, handle_), Reason::kStale, {{"why", "context rebuilt"}}));
  EXPECT_TRUE(Refused(Grant(owner_, handle_), Reason::kStale, {{"why", "context rebuilt"}}));
  // Guessing the current generation does not help.
  v1::BlockHandle guessed = handle_;
  guessed.set_generation(2);
  EXPECT_TRUE(Refused(Import(stranger_, guessed), Reason::kDenied));
  EXPECT_TRUE(daemon_.AccountsReturnTo(before));
  EXPECT_TRUE(Ok(Free(owner_, handle_, /*let_go=*/true)));
  EXPECT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
}

// Creates a session for `process` and joins it with a channel. Returns the state page that the daemon sends.
UniqueFd JoinForPage(const std::string& folder, PeerProcess& process) {
  AttachSocket lifeline = AttachSocket::Connect(folder, process);
  Must(lifeline.Send(MakeHello("page")), "hello");
  const auto [welcome, all_credentials] = Must(lifeline.Receive<attach::Welcome>(), "welcome");
  const SessionCredentials session_credentials =
      Must(ReadSessionCredentials(all_credentials.at(0).get()), "session credentials");
  AttachSocket channel = AttachSocket::Connect(folder, process);
  attach::Join join;
  join.session = session_credentials.session.value();
  join.secret = session_credentials.secret;
  Must(channel.Send(join), "join");
  auto [joined, pages] = Must(channel.Receive<attach::Joined>(), "joined");
  return std::move(pages.at(0));
}

TEST_F(HandlesTest, EachProcessOpensItsOwnStatePage) {
  PeerProcess one = PeerProcess::Start();
  PeerProcess two = PeerProcess::Start();
  const UniqueFd first = JoinForPage(daemon_.folder(), one);
  const UniqueFd second = JoinForPage(daemon_.folder(), two);
  ASSERT_EQ(::lseek(first.get(), 4242, SEEK_SET), 4242);
  ASSERT_EQ(::fcntl(first.get(), F_SETFL, O_APPEND | O_NONBLOCK), 0);
  ASSERT_EQ(::flock(first.get(), LOCK_SH | LOCK_NB), 0);
  PeerProcess three = PeerProcess::Start();
  const UniqueFd third = JoinForPage(daemon_.folder(), three);
  for (const int other : {second.get(), third.get()}) {
    EXPECT_EQ(::lseek(other, 0, SEEK_CUR), 0);
    EXPECT_EQ(::fcntl(other, F_GETFL) & (O_APPEND | O_NONBLOCK | O_ACCMODE), O_RDONLY);
    // Were it the first client's open file, this would turn its lock into an exclusive one.
    EXPECT_LT(::flock(other, LOCK_EX | LOCK_NB), 0);
  }
}

// Fds for clients are sealed, and writable only where intended.
TEST_F(HandlesTest, ClientFdsCannotExceedTheirRights) {
  constexpr int kSize = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
  AttachSocket lifeline = AttachSocket::Connect(daemon_.folder());
  Must(lifeline.Send(MakeHello("given")), "hello");
  auto [welcome, all_credentials] = Must(lifeline.Receive<attach::Welcome>(), "welcome");
  ASSERT_EQ(all_credentials.size(), 1u);
  const SessionCredentials session_credentials =
      Must(ReadSessionCredentials(all_credentials[0].get()), "session credentials");
  AttachSocket channel = AttachSocket::Connect(daemon_.folder());
  Must(channel.Send(attach::Join{.session = session_credentials.session.value(), .secret = session_credentials.secret}),
       "join");
  auto [joined, pages] = Must(channel.Receive<attach::Joined>(), "joined");
  ASSERT_EQ(pages.size(), 1u);
  v1::AllocateBlockRequest allocate;
  *allocate.mutable_request() = owner_.NextTag();
  allocate.set_bytes(1);
  const v1::BlockHandle handle = Must(owner_.Call(&Memory::AllocateBlock, allocate)).block().handle();
  const auto block = Must(owner_.ReceiveBlock(), "the block");
  v1::ImportBlockRequest import;
  *import.mutable_request() = owner_.NextTag();
  *import.mutable_handle() = handle;
  import.set_read_only(true);
  ASSERT_TRUE(Ok(owner_.Call(&Memory::ImportBlock, import)));
  const auto read_only = Must(owner_.ReceiveBlock(), "the read-only import");

  const struct {
    const char* name;
    int fd;
    int seals;
    bool writable;
  } given[] = {{"the session credentials", all_credentials[0].get(), kSize | F_SEAL_WRITE, false},
               {"the state page", pages[0].get(), kSize, false},
               {"a block", block.second.get(), kSize, true},
               {"a read-only import", read_only.second.get(), kSize, false}};
  for (const auto& [name, fd, seals, writable] : given) {
    SCOPED_TRACE(name);
    EXPECT_EQ(::fcntl(fd, F_GET_SEALS) & (kSize | F_SEAL_WRITE), seals);
    EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), -1);
    struct stat info;
    ASSERT_EQ(::fstat(fd, &info), 0);
    EXPECT_EQ(::ftruncate(fd, 0), -1);
    EXPECT_EQ(::ftruncate(fd, 2 * info.st_size), -1);
    const char byte = 0;
    EXPECT_EQ(::pwrite(fd, &byte, 1, 0) == 1, writable);
    void* const mapped = ::mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_EQ(mapped != MAP_FAILED, writable);
    if (mapped != MAP_FAILED) ::munmap(mapped, 1);
  }
}

}  // namespace
}  // namespace berth::testing
