#include "client/sdk/memory/import_table.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

// Memory that counts its open instances.
class Counted final : public MappedMemory {
 public:
  explicit Counted(std::atomic<int>* open) : open_(*open) { EXPECT_EQ(++open_, 1); }
  ~Counted() override { EXPECT_EQ(--open_, 0); }
  void* address() const override { return &open_; }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  std::atomic<int>& open_;
};

class ImportTableTest : public ::testing::Test {
 protected:
  std::unique_ptr<MappedMemory> Open(const BlockHandle& block, const std::string& device = "") {
    auto memory = table_.Open(block, device, [&]() -> absl::StatusOr<std::unique_ptr<MappedMemory>> {
      ++opens_;
      return std::make_unique<Counted>(&open_);
    });
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }

  ImportTable table_;
  std::atomic<int> open_ = 0;
  std::atomic<int> opens_ = 0;
  const BlockHandle block_ = {.node = 1, .incarnation = 2, .block = BlockId(3), .block_generation = 4};
};

TEST_F(ImportTableTest, ImportsOfSameBlockShareMapping) {
  auto first = Open(block_);
  auto second = Open(block_);
  EXPECT_EQ(opens_, 1);
  EXPECT_EQ(first->address(), second->address());
  first.reset();
  EXPECT_EQ(open_, 1);
  second.reset();
  EXPECT_EQ(open_, 0);
  EXPECT_EQ(table_.size(), 0u);
  Open(block_).reset();
  EXPECT_EQ(opens_, 2);
}

TEST_F(ImportTableTest, LaterBlockIsNotMistakenForEarlier) {
  std::atomic<int> other = 0;
  const auto first = Open(block_);
  for (const BlockHandle& later :
       {BlockHandle{.node = 1, .incarnation = 2, .block = BlockId(3), .block_generation = 5},
        BlockHandle{.node = 1, .incarnation = 3, .block = BlockId(3), .block_generation = 4},
        BlockHandle{.node = 9, .incarnation = 2, .block = BlockId(3), .block_generation = 4}}) {
    const auto memory = table_.Open(later, "", [&]() -> absl::StatusOr<std::unique_ptr<MappedMemory>> {
      return std::make_unique<Counted>(&other);
    });
    ASSERT_TRUE(memory.ok());
    EXPECT_NE((*memory)->address(), first->address());
  }
}

TEST_F(ImportTableTest, BlockIsOpenedPerMappingDevice) {
  std::atomic<int> other = 0;
  const auto first = Open(block_, "GPU-a");
  const auto second = table_.Open(block_, "GPU-b", [&]() -> absl::StatusOr<std::unique_ptr<MappedMemory>> {
    return std::make_unique<Counted>(&other);
  });
  EXPECT_EQ(table_.size(), 2u);
}

TEST_F(ImportTableTest, FailedOpenLeavesTableEmpty) {
  EXPECT_TRUE(absl::IsNotFound(
      table_
          .Open(block_, "",
                []() -> absl::StatusOr<std::unique_ptr<MappedMemory>> { return absl::NotFoundError("gone"); })
          .status()));
  EXPECT_EQ(table_.size(), 0u);
  Open(block_);
}

TEST_F(ImportTableTest, ConcurrentOpensShareMapping) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 500; ++round) EXPECT_EQ(Open(block_)->address(), &open_);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(table_.size(), 0u);
}

}  // namespace
}  // namespace berth::internal
