#include <berth/arena_cuda_progress.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

constexpr auto kOne = static_cast<ArenaStream>(0x1000);
constexpr auto kTwo = static_cast<ArenaStream>(0x2000);

// A driver whose streams write their values only when the test runs them.
class SlowDriver : public cuda::FakeDriver {
 public:
  absl::Status WriteValue64(cuda::Stream stream, cuda::DevicePointer at, uint64_t value) override {
    if (failing == "WriteValue64") return FakeDriver::WriteValue64(stream, at, value);
    queued_[stream].push_back({at, value});
    return absl::OkStatus();
  }

  void Run(ArenaStream stream) {
    const auto key = reinterpret_cast<cuda::Stream>(static_cast<uintptr_t>(stream));
    for (const auto& [at, value] : std::exchange(queued_[key], {})) {
      FakeDriver::WriteValue64(key, at, value).IgnoreError();
    }
  }

 private:
  std::map<cuda::Stream, std::vector<std::pair<cuda::DevicePointer, uint64_t>>> queued_;
};

class CudaStreamProgressTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto progress = CudaStreamProgress::Create(driver_);
    ASSERT_TRUE(progress.ok()) << progress.status();
    progress_ = *std::move(progress);
  }
  StreamProgress::Point Mark(ArenaStream stream) {
    const absl::StatusOr<StreamProgress::Point> point = progress_->Mark(stream);
    EXPECT_TRUE(point.ok()) << point.status();
    return point.value_or(0);
  }
  bool Reached(ArenaStream stream, StreamProgress::Point point) {
    const absl::StatusOr<bool> reached = progress_->Reached(stream, point);
    EXPECT_TRUE(reached.ok()) << reached.status();
    return reached.value_or(false);
  }

  SlowDriver driver_;
  std::shared_ptr<CudaStreamProgress> progress_;
};

TEST_F(CudaStreamProgressTest, MarkIsReachedWhenStreamRunsIt) {
  const auto first = Mark(kOne);
  EXPECT_FALSE(Reached(kOne, first));
  driver_.Run(kOne);
  EXPECT_TRUE(Reached(kOne, first));
  const auto second = Mark(kOne);
  EXPECT_TRUE(Reached(kOne, first));
  EXPECT_FALSE(Reached(kOne, second));
  driver_.Run(kOne);
  EXPECT_TRUE(Reached(kOne, second));
}

TEST_F(CudaStreamProgressTest, StreamsAdvanceIndependently) {
  const auto one = Mark(kOne);
  const auto two = Mark(kTwo);
  const auto by_default = Mark(ArenaStream::kDefault);
  driver_.Run(kTwo);
  EXPECT_FALSE(Reached(kOne, one));
  EXPECT_TRUE(Reached(kTwo, two));
  EXPECT_FALSE(Reached(ArenaStream::kDefault, by_default));
  driver_.Run(kOne);
  driver_.Run(ArenaStream::kDefault);
}

TEST_F(CudaStreamProgressTest, ReusedSlotKeepsValuesRising) {
  EXPECT_EQ(Mark(kOne), 1u);
  driver_.Run(kOne);
  progress_->Forget(kOne);
  EXPECT_TRUE(IsRefusal(progress_->Reached(kOne, 1).status(), Reason::kNotFound));
  const auto point = Mark(kTwo);
  EXPECT_FALSE(Reached(kTwo, point)) << "a value of the earlier stream counts for this stream";
  driver_.Run(kTwo);
  EXPECT_TRUE(Reached(kTwo, point));
  progress_->Forget(kOne);
}

TEST_F(CudaStreamProgressTest, StreamBeyondLimitRejectedUntilStreamForgotten) {
  for (size_t i = 0; i < CudaStreamProgress::kMaxStreams; ++i) {
    const auto stream = static_cast<ArenaStream>(i + 1);
    ASSERT_NE(Mark(stream), 0u);
    driver_.Run(stream);
  }
  const absl::Status refused = progress_->Mark(ArenaStream::kDefault).status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit)) << refused;
  progress_->Forget(static_cast<ArenaStream>(7));
  const auto point = Mark(ArenaStream::kDefault);
  EXPECT_FALSE(Reached(ArenaStream::kDefault, point));
  driver_.Run(ArenaStream::kDefault);
  EXPECT_TRUE(Reached(ArenaStream::kDefault, point));
  EXPECT_TRUE(Reached(static_cast<ArenaStream>(8), 1));
}

TEST_F(CudaStreamProgressTest, FailedMarkYieldsNoPoint) {
  driver_.failing = "WriteValue64";
  EXPECT_TRUE(IsRefusal(progress_->Mark(kOne).status(), Reason::kDriver));
  driver_.failing = "";
  const auto point = Mark(kOne);
  driver_.Run(kOne);
  EXPECT_TRUE(Reached(kOne, point));
}

TEST_F(CudaStreamProgressTest, ValuesAreReleasedWhenNoStreamWritesThem) {
  Mark(kOne);
  driver_.Run(kOne);
  progress_ = nullptr;
  EXPECT_TRUE(driver_.nothing_left());
}

TEST_F(CudaStreamProgressTest, ValuesStayWhileStreamMayWriteThem) {
  Mark(kOne);
  progress_ = nullptr;
  EXPECT_FALSE(driver_.nothing_left());
  driver_.Run(kOne);
}

TEST(CudaStreamProgressCreateTest, ValuesOutliveRequestingContext) {
  SlowDriver driver;
  const auto asking = reinterpret_cast<cuda::Context>(7);
  driver.current = asking;
  auto progress = CudaStreamProgress::Create(driver);
  ASSERT_TRUE(progress.ok()) << progress.status();
  EXPECT_EQ(driver.context_of.at("RegisterHostMemory"), driver.kPrimary);
  EXPECT_EQ(driver.current, asking);
  EXPECT_EQ(driver.contexts, 1);
  *progress = nullptr;
  EXPECT_EQ(driver.contexts, 0);
}

TEST(CudaStreamProgressCreateTest, DriverFailureReturnsErrorWithoutLeak) {
  SlowDriver driver;
  driver.failing = "RegisterHostMemory";
  EXPECT_TRUE(IsRefusal(CudaStreamProgress::Create(driver).status(), Reason::kDriver));
  EXPECT_TRUE(driver.nothing_left());
}

}  // namespace
}  // namespace berth
