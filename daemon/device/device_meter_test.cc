#include "daemon/device/device_meter.h"

#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/device/worker_channel.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

class DeviceMeterTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/readings-", ::getpid());
};

TEST_F(DeviceMeterTest, AScriptSaysWhatADriverWould) {
  Write(absl::StrCat("0 memory 1000 400\n1 memory 7 7\n0 utilisation 35\n0 process ", ::getpid(),
                     " 500\n0 process 2147483647 20\n"));
  const auto meter = NewScriptedMeter(path_, 0, ::getppid());
  const absl::StatusOr<worker::Reading> reading = meter->Read();
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->total, 1000u);
  EXPECT_EQ(reading->free, 400u);
  EXPECT_EQ(reading->utilisation, 35);
  ASSERT_EQ(reading->count, 2u);
  EXPECT_EQ(reading->processes[0].pid, ::getpid());
  EXPECT_EQ(reading->processes[0].bytes, 500u);
  EXPECT_EQ(reading->processes[0].uid, ::getuid());
  EXPECT_EQ(reading->processes[0].ancestors[0], ::getppid());
  EXPECT_EQ(reading->processes[0].daemon, 1u) << "a child of the daemon's";
  EXPECT_STRNE(reading->processes[0].name, "");
  EXPECT_EQ(reading->processes[1].ancestors[0], 0) << "one that is gone has none";
  EXPECT_GT(reading->taken_ns, 0);
  EXPECT_FALSE(NewScriptedMeter(path_, 2, 0)->Read().ok());
  EXPECT_FALSE(NewScriptedMeter(path_ + "-none", 0, 0)->Read().ok());
}

TEST_F(DeviceMeterTest, WhomThereIsNoRoomForIsAddedUp) {
  std::string text = "0 memory 1000 400\n";
  for (int i = 0; i < 50; ++i) absl::StrAppend(&text, "0 process ", 2'000'000'000 + i, " 3\n");
  Write(text);
  const absl::StatusOr<worker::Reading> reading = NewScriptedMeter(path_, 0, 0)->Read();
  ASSERT_TRUE(reading.ok());
  EXPECT_EQ(reading->count, worker::Reading::kMaxProcesses);
  EXPECT_EQ(reading->rest, (50 - worker::Reading::kMaxProcesses) * 3u);
}

TEST_F(DeviceMeterTest, ReadingsArriveBesideTheWorkersAnswers) {
  Write("0 memory 1000 400\n0 process 2000000000 3\n");
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const UniqueFd worker(sockets[1]);
  WorkerChannel channel{UniqueFd(sockets[0])};
  const auto loop = MeterLoop::Start(worker.get(), NewScriptedMeter(path_, 0, 0));
  ASSERT_TRUE(loop.ok()) << loop.status();
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<WorkerReply> reply = channel.Read();
    ASSERT_TRUE(reply.ok()) << reply.status();
    const auto* const reading = std::get_if<worker::Reading>(&*reply);
    ASSERT_NE(reading, nullptr);
    EXPECT_EQ(reading->free, 400u);
    ASSERT_EQ(reading->count, 1u);
    EXPECT_EQ(reading->processes[0].bytes, 3u);
  }
}

}  // namespace
}  // namespace berth
