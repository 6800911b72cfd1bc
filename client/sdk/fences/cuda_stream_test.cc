#include "client/sdk/fences/cuda_stream.h"

#include <memory>
#include <string>
#include <vector>

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"
#include "common/os/memfd.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

const auto kStream = reinterpret_cast<cuda::Stream>(70);
const auto kContext = reinterpret_cast<cuda::Context>(7);

std::unique_ptr<MappedPage> Page(bool read_only) {
  return std::make_unique<MappedPage>(*FencePage::MapWritable(CreateFencePage(ChannelId(1))->get()),
                                      read_only);
}

TEST(CudaStreamTest, PageIsRegisteredOnceWhileMapped) {
  cuda::FakeDriver driver;
  {
    const std::unique_ptr<MappedPage> page = Page(/*read_only=*/true);
    CudaStream stream(driver, kStream, kContext, 0);
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

TEST(CudaStreamTest, PageRetainsContextAndRestoresThreadContext) {
  cuda::FakeDriver driver;
  driver.current = kContext;
  {
    const std::unique_ptr<MappedPage> page = Page(/*read_only=*/false);
    CudaStream stream(driver, kStream, kContext, 0);
    ASSERT_TRUE(stream.Write(*page, 0, 1).ok());
    ASSERT_TRUE(stream.Write(*page, 0, 2).ok());
    EXPECT_EQ(driver.contexts, 1);
    EXPECT_EQ(driver.current, kContext);
  }
  EXPECT_EQ(driver.contexts, 0);
  EXPECT_EQ(driver.current, kContext);
}

TEST(CudaStreamTest, FenceValueIsWritten) {
  cuda::FakeDriver driver;
  const std::unique_ptr<MappedPage> page = Page(/*read_only=*/false);
  CudaStream stream(driver, kStream, kContext, 0);
  ASSERT_TRUE(stream.Write(*page, 3, 5).ok());
  EXPECT_EQ(page->slot(3).done.load(), 5u);
  EXPECT_EQ(page->slot(3).begun.load(), 0u);
}

TEST(CudaStreamTest, EventsUseStreamContext) {
  cuda::FakeDriver driver;
  {
    CudaStream stream(driver, kStream, kContext, 0);
    absl::StatusOr<std::unique_ptr<StreamEvent>> event = stream.CreateEvent();
    ASSERT_TRUE(event.ok()) << event.status();
    EXPECT_EQ(driver.context_of.at("CreateEvent"), kContext);
    EXPECT_EQ(driver.current, nullptr);
    driver.calls.clear();
    ASSERT_TRUE(stream.Record(**event).ok());
    ASSERT_TRUE(stream.WaitEvent(**event).ok());
    EXPECT_EQ(driver.calls, std::vector<std::string>({"RecordEvent", "WaitEvent"}));
    driver.reached = false;
    EXPECT_FALSE(*stream.Reached(**event));
    EXPECT_EQ(driver.context_of.at("QueryEvent"), kContext);
    EXPECT_EQ(driver.capture_mode_of.at("QueryEvent"), cuda::CaptureMode::kRelaxed);
  }
  EXPECT_TRUE(driver.nothing_left());
}

TEST(CudaStreamTest, EventIsPublishedOnSideAndNextValueWaits) {
  cuda::FakeDriver driver;
  {
    const std::unique_ptr<MappedPage> page = Page(/*read_only=*/false);
    CudaStream stream(driver, kStream, kContext, 0);
    const std::unique_ptr<StreamEvent> event = *stream.CreateEvent();
    ASSERT_TRUE(stream.Publish(*event, *page, 3, 5).ok());
    EXPECT_EQ(page->slot(3).done.load(), 5u);
    // The side stream, not the program's stream, waited and wrote.
    ASSERT_EQ(driver.awaited.size(), 1u);
    EXPECT_NE(driver.awaited[0].first, kStream);
    EXPECT_EQ(driver.context_of.at("WriteValue64"), kContext);
    EXPECT_EQ(driver.current, nullptr);
    ASSERT_TRUE(stream.Publish(*event, *page, 3, 6).ok());
    EXPECT_EQ(driver.streams.size(), 1u);
    ASSERT_TRUE(stream.Write(*page, 3, 7).ok());
    ASSERT_EQ(driver.awaited.size(), 3u);
    EXPECT_EQ(driver.awaited[2].first, kStream);
    ASSERT_TRUE(stream.Write(*page, 3, 8).ok());
    EXPECT_EQ(driver.awaited.size(), 3u);
  }
  EXPECT_EQ(driver.context_of.at("DestroyStream"), kContext);
  EXPECT_TRUE(driver.nothing_left());
  EXPECT_EQ(driver.contexts, 0);
}

TEST(CudaStreamTest, FailedPublishLeavesValueUnchanged) {
  for (const char* const failing : {"CreateStream", "WaitEvent", "WriteValue64"}) {
    cuda::FakeDriver driver;
    {
      const std::unique_ptr<MappedPage> page = Page(/*read_only=*/false);
      CudaStream stream(driver, kStream, kContext, 0);
      const std::unique_ptr<StreamEvent> event = *stream.CreateEvent();
      driver.failing = failing;
      EXPECT_TRUE(IsRefusal(stream.Publish(*event, *page, 0, 1), Reason::kDriver)) << failing;
      EXPECT_EQ(page->slot(0).done.load(), 0u);
      driver.failing = "";
    }
    EXPECT_TRUE(driver.nothing_left()) << failing;
  }
}

TEST(CudaStreamTest, UnsupportedDeviceIsRejectedBeforeUse) {
  class Old : public cuda::FakeDriver {
    absl::StatusOr<int> Attribute(int, cuda::DeviceAttribute) override { return 0; }
  } driver;
  CudaStream stream(driver, kStream, kContext, 0);
  const absl::Status refused = stream.CheckSupport();
  EXPECT_TRUE(IsRefusal(refused, Reason::kUnsupported)) << refused;
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("capability"), "fences");
  EXPECT_TRUE(IsRefusal(stream.Enqueue([] {}), Reason::kUnsupported));
}

TEST(CudaStreamTest, DriverErrorsAreReturnedWithoutLeaks) {
  const std::unique_ptr<MappedPage> page = Page(/*read_only=*/false);
  for (const char* const failing :
       {"RetainPrimaryContext", "SetCurrentContext", "RegisterHostMemory", "WriteValue64"}) {
    cuda::FakeDriver driver;
    driver.failing = failing;
    const std::unique_ptr<MappedPage> fresh = Page(/*read_only=*/false);
    CudaStream stream(driver, kStream, kContext, 0);
    EXPECT_TRUE(IsRefusal(stream.Write(*fresh, 0, 1), Reason::kDriver)) << failing;
    EXPECT_EQ(fresh->slot(0).done.load(), 0u);
    // A registered page remains registered.
    EXPECT_EQ(static_cast<size_t>(driver.contexts), driver.registered.size()) << failing;
  }
}

}  // namespace
}  // namespace berth::internal
