// Handles that are forged, stale or somebody else's: each is answered by its reason, and nothing changes.

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "gtest/gtest.h"
#include "tests/support/raw_client.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

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
    // The worker lets go of its fd after the block is there.
    Books last;
    EXPECT_TRUE(daemon_.BooksBecome([&](const Books& now) { return std::exchange(last, now) == now; }));
  }

  v1::BlockHandle Allocate() {
    v1::AllocateBlockRequest request;
    *request.mutable_request() = owner_.NextTag();
    request.set_bytes(1);
    const v1::AllocateBlockResponse response = Must(owner_.Call(&Memory::AllocateBlock, request));
    // A recall of an earlier block may come before.
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

TEST_F(HandlesTest, EveryForgedFieldIsAnsweredByItsReasonAndChangesNothing) {
  struct Row {
    const char* field;
    std::function<void(v1::BlockHandle&)> forge;
    // Of an import; of a grant and a free by its owner. Empty for a refusal that gives no reason why.
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
  const Books before = daemon_.TakeBooks();
  for (const Row& row : rows) {
    v1::BlockHandle forged = handle_;
    row.forge(forged);
    const std::map<std::string, std::string> why = *row.why == '\0'
                                                       ? std::map<std::string, std::string>{}
                                                       : std::map<std::string, std::string>{{"why", row.why}};
    const auto figures = [&](Reason reason) {
      return reason == Reason::kStale ? why : std::map<std::string, std::string>{};
    };
    EXPECT_TRUE(Refused(Import(owner_, forged), row.import, figures(row.import))) << row.field;
    EXPECT_TRUE(Refused(Grant(owner_, forged), row.own, figures(row.own))) << row.field;
    EXPECT_TRUE(Refused(Free(owner_, forged), row.own, figures(row.own))) << row.field;
  }
  EXPECT_EQ(daemon_.TakeBooks(), before);
  EXPECT_TRUE(Ok(Import(owner_, handle_))) << "the true one is what it was";
}

TEST_F(HandlesTest, ATrueHandleGivesAStrangerNothing) {
  const Books before = daemon_.TakeBooks();
  EXPECT_TRUE(Refused(Import(stranger_, handle_), Reason::kDenied));
  EXPECT_TRUE(Refused(Grant(stranger_, handle_), Reason::kNotFound));
  EXPECT_TRUE(Refused(Free(stranger_, handle_), Reason::kNotFound));
  EXPECT_EQ(daemon_.TakeBooks(), before);
  // What is granted is the right to import, and no more.
  EXPECT_TRUE(Ok(Grant(owner_, handle_)));
  EXPECT_TRUE(Ok(Import(stranger_, handle_)));
  EXPECT_TRUE(Refused(Grant(stranger_, handle_), Reason::kNotFound));
  EXPECT_TRUE(Refused(Free(stranger_, handle_), Reason::kNotFound));
}

TEST_F(HandlesTest, AHandleIsNotGoodAgainAfterItsBlockWasFreed) {
  EXPECT_TRUE(Ok(Free(owner_, handle_)));
  // Still mapped: its owner is told, and nobody gets it any more.
  EXPECT_TRUE(Refused(Free(owner_, handle_), Reason::kStale, {{"why", "freed already"}}));
  EXPECT_TRUE(Refused(Import(owner_, handle_), Reason::kDenied));
  const v1::BlockHandle next = Allocate();
  EXPECT_NE(next.block(), handle_.block());
  EXPECT_GT(next.block_generation(), handle_.block_generation());
  // The old id with the new one's generation is no handle either.
  v1::BlockHandle mixed = handle_;
  mixed.set_block_generation(next.block_generation());
  EXPECT_TRUE(Refused(Import(owner_, mixed), Reason::kDenied));
  EXPECT_TRUE(Ok(Free(owner_, next, /*let_go=*/true)));
  ASSERT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.blocks == 1; }));
  EXPECT_TRUE(Refused(Free(owner_, next), Reason::kNotFound));
}

TEST_F(HandlesTest, AHandleOfLostMemoryIsStaleToThoseWhoMayKnowAndFreedByItsOwner) {
  EXPECT_TRUE(Ok(Grant(owner_, handle_)));
  Must(daemon_.inspector().ResetDevice(0));
  ASSERT_TRUE(Eventually([&] {
    const auto devices = Must(daemon_.inspector().ListDevices());
    return devices.devices(0).generation() == 2 && devices.devices(0).state() == v1::Device::READY;
  }));
  const Books before = daemon_.TakeBooks();
  EXPECT_TRUE(Refused(Import(stranger_, handle_), Reason::kStale, {{"why", "context rebuilt"}}));
  EXPECT_TRUE(Refused(Grant(owner_, handle_), Reason::kStale, {{"why", "context rebuilt"}}));
  // Guessing the generation of now does not help.
  v1::BlockHandle guessed = handle_;
  guessed.set_generation(2);
  EXPECT_TRUE(Refused(Import(stranger_, guessed), Reason::kDenied));
  EXPECT_EQ(daemon_.TakeBooks(), before);
  EXPECT_TRUE(Ok(Free(owner_, handle_, /*let_go=*/true)));
  EXPECT_TRUE(daemon_.BooksBecome([](const Books& books) { return books.blocks == 0; }));
}

}  // namespace
}  // namespace berth::testing
