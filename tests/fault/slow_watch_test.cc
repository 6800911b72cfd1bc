// A watcher that reads nothing gets no further updates, delays no other client, and is dropped (the last in the soak).

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <berth/cancellation.h>
#include <berth/session.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.grpc.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/unique_fd.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/testing.h"
#include "tests/support/wire/http2.h"

namespace berth::testing {
namespace {

using http2::FrameType;

constexpr uint32_t kStream = 1;
// DeviceWatches::kSlow, plus a tolerance for this test's lag behind the daemon.
constexpr absl::Duration kSlow = absl::Seconds(9);

// One WatchDevices call of a client that grants its answers no window.
class DeafWatcher {
 public:
  explicit DeafWatcher(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path.c_str(), path.size() + 1);
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    const std::string call =
        http2::Preface(/*stream_window=*/0) +
        http2::Frame(FrameType::kHeaders, http2::kEndHeaders, kStream,
                     http2::CallHeaders("/berth.v1.DeviceService/WatchDevices", /*first=*/true)) +
        http2::Frame(FrameType::kData, http2::kEndStream, kStream, http2::EmptyMessage());
    EXPECT_EQ(::send(socket_.get(), call.data(), call.size(), MSG_NOSIGNAL), static_cast<ssize_t>(call.size()));
  }

  // Returns the frames of the call so far, in order, once none has come for a while.
  const std::vector<FrameType>& Frames() {
    pollfd entry = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
    while (::poll(&entry, 1, 500) > 0) {
      char bytes[4096];
      const ssize_t size = ::recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (size <= 0) break;
      unread_.append(bytes, static_cast<size_t>(size));
    }
    while (TakeFrame()) {
    }
    return frames_;
  }

 private:
  static constexpr size_t kHeaderBytes = 9;

  bool TakeFrame() {
    if (unread_.size() < kHeaderBytes) return false;
    const auto byte = [this](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(unread_[i])); };
    const size_t size = kHeaderBytes + (byte(0) << 16 | byte(1) << 8 | byte(2));
    const uint32_t stream = byte(5) << 24 | byte(6) << 16 | byte(7) << 8 | byte(8);
    if (unread_.size() < size) return false;
    if (stream == kStream) frames_.push_back(static_cast<FrameType>(byte(3)));
    unread_.erase(0, size);
    return true;
  }

  const UniqueFd socket_;
  std::string unread_;
  std::vector<FrameType> frames_;
};

TEST(SlowWatchTest, StalledWatcherIsDroppedOthersAreNotified) {
  TestDaemon daemon;
  const absl::Time begin = absl::Now();
  auto deaf = std::make_optional<DeafWatcher>(daemon.folder() + "/observer.sock");
  // The headers of an answer need no window.
  ASSERT_TRUE(Eventually([&] { return !deaf->Frames().empty(); }));
  EXPECT_EQ(deaf->Frames(), std::vector<FrameType>{FrameType::kHeaders});

  auto session = Must(Session::Open({.folder = daemon.folder(), .always_new = true}));
  Cancellation cancellation;
  std::atomic<bool> draining = false;
  std::thread watcher([&] {
    const auto note = [&](const v1::WatchDevicesResponse& answer) {
      draining = !answer.devices(0).drain_reason().empty();
      return true;
    };
    const absl::Status end = Inspector(session, &cancellation).WatchDevices(note);
    EXPECT_TRUE(absl::IsCancelled(end)) << end;
  });
  Must(daemon.inspector().DrainDevice(0, "for the test"));
  EXPECT_TRUE(Eventually([&] { return draining.load(); }));
  // Each change finds it slow for a longer time. The drop takes kSlow.
  EXPECT_TRUE(Eventually([&] {
    Must(daemon.inspector().UndrainDevice(0));
    Must(daemon.inspector().DrainDevice(0, "for the test"));
    return !Soaks() || deaf->Frames().back() == FrameType::kRstStream;
  }));
  if (Soaks()) {
    EXPECT_GE(absl::Now() - begin, kSlow);
  }
  Must(daemon.inspector().UndrainDevice(0));
  EXPECT_TRUE(Eventually([&] { return !draining; })) << "who reads is told all the while";
  cancellation.Cancel();
  watcher.join();
  session = nullptr;
  deaf.reset();
  daemon.ExpectAccountsBack();
}

TEST(SlowWatchTest, ResumedWatchSendsOnlyChanges) {
  TestDaemon daemon;
  const auto stub = v1::DeviceService::NewStub(grpc::CreateChannel(
      absl::StrCat("unix:", daemon.folder(), "/observer.sock"), grpc::InsecureChannelCredentials()));
  v1::WatchDevicesRequest request;
  v1::WatchDevicesResponse seen;
  {
    grpc::ClientContext context;
    const auto reader = stub->WatchDevices(&context, request);
    ASSERT_TRUE(reader->Read(&seen));
    context.TryCancel();
  }
  request.set_resume_token(seen.resume_token());
  grpc::ClientContext context;
  const auto reader = stub->WatchDevices(&context, request);
  // A watch without a token, opened later, is answered at once; the next answer of the first watch is the change.
  grpc::ClientContext other_context;
  const auto other = stub->WatchDevices(&other_context, v1::WatchDevicesRequest());
  ASSERT_TRUE(other->Read(&seen));
  other_context.TryCancel();
  Must(daemon.inspector().DrainDevice(0, "for the test"));
  v1::WatchDevicesResponse next;
  ASSERT_TRUE(reader->Read(&next));
  EXPECT_EQ(next.devices(0).drain_reason(), "for the test");
  EXPECT_NE(next.resume_token(), seen.resume_token());
  context.TryCancel();
  // A watch with an earlier token has missed a change.
  grpc::ClientContext again;
  const auto late = stub->WatchDevices(&again, request);
  ASSERT_TRUE(late->Read(&seen));
  EXPECT_EQ(seen.devices(0).drain_reason(), "for the test");
  again.TryCancel();
}

}  // namespace
}  // namespace berth::testing
