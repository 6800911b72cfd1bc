#include "client/internal/cuda_stream.h"

#include <memory>

#include "common/cuda/fake_driver.h"
#include "common/error.h"
#include "common/memfd.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

std::unique_ptr<MappedPage> Page(bool read_only) {
  return std::make_unique<MappedPage>(*FencePage::MapWritable(CreateFencePage(ChannelId(1))->get()),
                                      read_only);
}

TEST(CudaStreamTest, RegistersAPageOnceAndForAsLongAsItIsMapped) {
  cuda::FakeDriver driver;
  {
    const std::unique_ptr<MappedPage> page = Page(/*read_only=*/true);
    CudaStream stream(driver, nullptr, 0);
    ASSERT_TRUE(stream.Wait(*page, 3, 5).ok());
    ASSERT_TRUE(stream.Wait(*page, 4, 6).ok());
    EXPECT_EQ(std::count(driver.calls.begin(), driver.calls.end(), "RegisterHostMemory"), 1);
    ASSERT_EQ(driver.waited_for.size(), 2u);
    EXPECT_EQ(driver.waited_for[0].first, reinterpret_cast<uint64_t>(&page->slot(3).done));
    EXPECT_EQ(driver.waited_for[0].second, 5u);
    EXPECT_EQ(driver.waited_for[1].first - driver.waited_for[0].first, sizeof(FenceSlot));
  }
  EXPECT_TRUE(driver.nothing_left());
}

TEST(CudaStreamTest, APageKeepsTheContextThatItIsRegisteredInAndLeavesTheThreadsAsItWas) {
  cuda::FakeDriver driver;
  driver.current = reinterpret_cast<cuda::Context>(7);
  {
    const std::unique_ptr<MappedPage> page = Page(/*read_only=*/false);
    CudaStream stream(driver, nullptr, 0);
    ASSERT_TRUE(stream.Write(*page, 0, 1).ok());
    ASSERT_TRUE(stream.Write(*page, 0, 2).ok());
    EXPECT_EQ(driver.contexts, 1);
    EXPECT_EQ(driver.current, reinterpret_cast<cuda::Context>(7));
  }
  EXPECT_EQ(driver.contexts, 0);
  EXPECT_EQ(driver.current, reinterpret_cast<cuda::Context>(7));
}

TEST(CudaStreamTest, WritesItsWord) {
  cuda::FakeDriver driver;
  const std::unique_ptr<MappedPage> page = Page(/*read_only=*/false);
  CudaStream stream(driver, nullptr, 0);
  ASSERT_TRUE(stream.Write(*page, 3, 5).ok());
  EXPECT_EQ(page->slot(3).done.load(), 5u);
  EXPECT_EQ(page->slot(3).begun.load(), 0u);
}

TEST(CudaStreamTest, SaysBeforehandWhereTheDeviceCannot) {
  class Old : public cuda::FakeDriver {
    absl::StatusOr<int> Attribute(int, cuda::DeviceAttribute) override { return 0; }
  } driver;
  CudaStream stream(driver, nullptr, 0);
  const absl::Status refused = stream.CheckSupport();
  EXPECT_TRUE(IsRefusal(refused, Reason::kUnsupported)) << refused;
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("capability"), "fences");
  EXPECT_TRUE(IsRefusal(stream.Enqueue([] {}), Reason::kUnsupported));
}

TEST(CudaStreamTest, TheDriversErrorsComeThroughAndLeaveNothing) {
  const std::unique_ptr<MappedPage> page = Page(/*read_only=*/false);
  for (const char* const failing :
       {"RetainPrimaryContext", "SetCurrentContext", "RegisterHostMemory", "WriteValue64"}) {
    cuda::FakeDriver driver;
    driver.failing = failing;
    const std::unique_ptr<MappedPage> fresh = Page(/*read_only=*/false);
    CudaStream stream(driver, nullptr, 0);
    EXPECT_TRUE(IsRefusal(stream.Write(*fresh, 0, 1), Reason::kDriver)) << failing;
    EXPECT_EQ(fresh->slot(0).done.load(), 0u);
    // A page that is registered stays so.
    EXPECT_EQ(static_cast<size_t>(driver.contexts), driver.registered.size()) << failing;
  }
}

}  // namespace
}  // namespace berth::internal
