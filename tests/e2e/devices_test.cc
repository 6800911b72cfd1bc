// Devices in and out of service, over processes: workers that die, hang or will not die, memory that is lost, and those
// who watch. What is not of that device goes on all the while.

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cancellation.h"
#include "client/inspector.h"
#include "client/session.h"
#include "client/status_conversion.h"
#include "common/block_handle.h"
#include "common/bytes.h"
#include "common/error.h"
#include "common/mutex.h"
#include "common/session_capsule.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/proc.h"
#include "tests/support/raw_client.h"
#include "tests/support/subprocess.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Admin = v1::AdminService::Stub;

pid_t WorkerOf(TestDaemon& daemon, uint32_t device) {
  for (const ChildInfo& child : ChildrenOf(daemon.vault().pid())) {
    if (child.name == absl::StrCat("berth-worker", device)) return child.pid;
  }
  return 0;
}

v1::Device DeviceOf(TestDaemon& daemon, uint32_t device) {
  return Must(daemon.inspector().ListDevices(), "devices").devices(static_cast<int>(device));
}

// Over a broker's death too.
bool BecomesReady(TestDaemon& daemon, uint32_t device) {
  return Eventually([&] {
    const absl::StatusOr<v1::ListDevicesResponse> answer = daemon.inspector().ListDevices();
    return answer.ok() && answer->devices(static_cast<int>(device)).state() == v1::Device::READY;
  });
}

// Kills the device's worker and waits for the next one.
void KillWorker(TestDaemon& daemon, uint32_t device) {
  pid_t worker = 0;
  ASSERT_TRUE(Eventually([&] { return (worker = WorkerOf(daemon, device)) != 0; }));
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    const pid_t now = WorkerOf(daemon, device);
    return now != 0 && now != worker && DeviceOf(daemon, device).state() == v1::Device::READY;
  }));
}

TestDaemonOptions TwoDevices(const std::string& call_deadline = "10s") {
  return {.flags = {"--host-devices=2", absl::StrCat("--call-deadline=", call_deadline)}};
}

bool Says(const absl::Status& status, const char* text) { return absl::StrContains(status.message(), text); }

absl::Status SetDeviceBudget(TestDaemon& daemon, Bytes budget) {
  v1::SetBudgetRequest request;
  request.set_device(0);
  request.set_limit_bytes(budget.count());
  return daemon.inspector().SetBudget(request).status();
}

TEST(DevicesTest, AWorkerThatHangsIsReplacedAndTheNextOneDoesWhatItWasAsked) {
  TestDaemon daemon(TwoDevices("1s"));
  Actor actor(daemon);
  Actor other(daemon);
  actor.Do("allocate a 4096");
  actor.Do("map a");
  actor.Do("fill a 7");
  const pid_t hung = WorkerOf(daemon, 0);
  // As in a driver call that does not end.
  ASSERT_EQ(::kill(hung, SIGSTOP), 0);
  actor.Tell("allocate b 4096");
  EXPECT_TRUE(Ok(other.Ask("allocate c 4096 device=1")));
  EXPECT_TRUE(Ok(other.Ask("acquire p")));
  EXPECT_TRUE(Ok(actor.Answer()));
  EXPECT_NE(WorkerOf(daemon, 0), hung);
  EXPECT_FALSE(IsAlive(hung));
  const v1::Device device = DeviceOf(daemon, 0);
  EXPECT_EQ(device.state(), v1::Device::READY);
  EXPECT_EQ(device.restarts_left(), 2u);
  EXPECT_TRUE(absl::StrContains(device.last_failure(), "a driver call did not end in 1s"))
      << device.last_failure();
  EXPECT_EQ(DeviceOf(daemon, 1).restarts_left(), 3u);
  // Its death costs no data and no lease.
  EXPECT_EQ(device.generation(), 1u);
  EXPECT_TRUE(Ok(actor.Ask("access a")));
  EXPECT_TRUE(Ok(actor.Ask("check a 7")));
  actor.Quit();
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(DevicesTest, TheFourthDeathStopsADeviceAndAnOperatorBringsItBack) {
  TestDaemon daemon(TwoDevices());
  Actor actor(daemon);
  Actor other(daemon);
  actor.Do("allocate a 4096");
  for (int death = 0; death < 3; ++death) KillWorker(daemon, 0);
  EXPECT_EQ(DeviceOf(daemon, 0).restarts_left(), 0u);
  // What waits for the worker is answered when there is none any more.
  const pid_t last = WorkerOf(daemon, 0);
  ASSERT_EQ(::kill(last, SIGSTOP), 0);
  actor.Tell("allocate b 4096");
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.reserved > 0; }));
  ASSERT_EQ(::kill(last, SIGKILL), 0);
  EXPECT_TRUE(Refused(actor.Answer(), Reason::kDeviceStopped,
                      {{"device", "0"}, {"why", "the worker ended: signal 9"}}));
  EXPECT_TRUE(Refused(actor.Ask("allocate c 4096"), Reason::kDeviceStopped));
  EXPECT_TRUE(Ok(other.Ask("allocate d 4096 device=1")));
  EXPECT_TRUE(Ok(actor.Ask("map a"))) << "its blocks live on";
  const v1::Device stopped = DeviceOf(daemon, 0);
  EXPECT_EQ(stopped.state(), v1::Device::STOPPED);
  EXPECT_EQ(stopped.last_failure(), "the worker ended: signal 9");
  EXPECT_TRUE(Refused(daemon.inspector().RestartDevice(0), Reason::kDeviceStopped));

  EXPECT_EQ(Must(daemon.inspector().EnableDevice(0)).state(), v1::Device::PROBATION);
  EXPECT_TRUE(Ok(actor.Ask("allocate c 4096")));
  EXPECT_EQ(DeviceOf(daemon, 0).restarts_left(), 3u);
  actor.Quit();
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(DevicesTest, AnOrderedRestartCostsNoDataAndDoesNotCount) {
  TestDaemon daemon(TwoDevices());
  Actor actor(daemon);
  actor.Do("allocate a 4096");
  actor.Do("map a");
  actor.Do("fill a 3");
  for (int i = 0; i < 5; ++i) {
    const pid_t before = WorkerOf(daemon, 0);
    EXPECT_TRUE(Ok(daemon.inspector().RestartDevice(0)));
    EXPECT_TRUE(Ok(actor.Ask(absl::StrCat("allocate b", i, " 4096"))));
    EXPECT_NE(WorkerOf(daemon, 0), before);
  }
  EXPECT_EQ(DeviceOf(daemon, 0).restarts_left(), 3u);
  EXPECT_TRUE(Ok(actor.Ask("access a")));
  EXPECT_TRUE(Ok(actor.Ask("check a 3")));
  actor.Quit();
  daemon.ExpectBooksBack();
}

TEST(DevicesTest, AWorkerThatSigkillDoesNotEndStopsItsDeviceUntilItIsGone) {
  TestDaemon daemon(TwoDevices("500ms"));
  Actor actor(daemon);
  Actor other(daemon);
  const pid_t worker = WorkerOf(daemon, 0);
  // Held on its way out, as by a driver call that cannot be interrupted.
  if (::ptrace(PTRACE_SEIZE, worker, nullptr, PTRACE_O_TRACEEXIT) < 0) {
    GTEST_SKIP() << "no right to trace: " << strerror(errno);
  }
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  int stopped = 0;
  ASSERT_EQ(::waitpid(worker, &stopped, __WALL), worker);
  actor.Tell("allocate a 4096");
  EXPECT_TRUE(Ok(other.Ask("allocate c 4096 device=1")));
  const absl::Status refused = actor.Answer().status();
  EXPECT_TRUE(Refused(refused, Reason::kDeviceStopped));
  EXPECT_TRUE(Says(refused, "it did not end within 2 s of SIGKILL")) << refused;
  EXPECT_TRUE(IsAlive(worker));
  EXPECT_EQ(DeviceOf(daemon, 0).state(), v1::Device::STOPPED);
  EXPECT_TRUE(Refused(daemon.inspector().EnableDevice(0), Reason::kDeviceStopped));
  EXPECT_TRUE(Ok(other.Ask("allocate d 4096 device=1")));
  // Let go, it ends, and the device may serve again.
  ::ptrace(PTRACE_DETACH, worker, nullptr, nullptr);
  ASSERT_TRUE(Eventually([&] { return daemon.inspector().EnableDevice(0).ok(); }));
  EXPECT_TRUE(Ok(actor.Ask("allocate a 4096")));
  EXPECT_FALSE(IsAlive(worker));
  actor.Quit();
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(DevicesTest, WhatWaitsForAWorkerIsAnsweredWhenTheDaemonStops) {
  TestDaemon daemon(TwoDevices());
  Actor actor(daemon);
  ASSERT_EQ(::kill(WorkerOf(daemon, 0), SIGSTOP), 0);
  actor.Tell("allocate a 4096");
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.reserved > 0; }));
  daemon.Stop();
  EXPECT_TRUE(absl::IsUnavailable(actor.Answer().status()));
  actor.Quit();
}

TEST(DevicesTest, AThousandAllocationsWaitForAWorkerAndTheNextIsToldToComeAgain) {
  TestDaemon daemon({.flags = {"--host-bytes=16GiB", "--device-budget=16GiB"}});
  constexpr int kWaiting = 1024;
  struct Allocation {
    grpc::ClientContext context;
    v1::AllocateBlockRequest request;
    v1::AllocateBlockResponse response;
    absl::Status status = absl::UnknownError("not answered");
    std::atomic<bool> answered = false;
  };
  // A channel may have no more requests open, so it takes two.
  std::vector<RawClient> clients;
  for (int i = 0; i < 2; ++i) clients.push_back(RawClient::Open(daemon.folder()));
  std::vector<std::unique_ptr<v1::MemoryService::Stub>> stubs;
  for (RawClient& client : clients) stubs.push_back(v1::MemoryService::NewStub(client.grpc_channel()));
  // Who would start the next worker does not get to it.
  daemon.vault().Signal(SIGSTOP);
  EXPECT_EQ(Must(daemon.inspector().RestartDevice(0)).state(), v1::Device::REBUILDING);
  std::vector<std::unique_ptr<Allocation>> waiting;
  for (int i = 0; i < kWaiting + 1; ++i) {
    RawClient& client = clients[i % 2];
    Allocation& allocation = *waiting.emplace_back(std::make_unique<Allocation>());
    allocation.context.AddMetadata(kCredentialsHeader, EncodeCredentials(client.credentials()));
    *allocation.request.mutable_request() = client.NextTag();
    allocation.request.set_bytes(1);
    // Loaded by the thread that answers: how gRPC orders the two ThreadSanitizer does not see.
    allocation.answered = false;
    stubs[i % 2]->async()->AllocateBlock(&allocation.context, &allocation.request, &allocation.response,
                                         [&allocation](const grpc::Status& status) {
                                           ASSERT_FALSE(allocation.answered);
                                           allocation.status = FromGrpc(status);
                                           allocation.answered = true;
                                         });
  }
  // Whichever of them came last.
  const auto answered = [&] {
    return std::find_if(waiting.begin(), waiting.end(), [](const auto& one) { return one->answered.load(); });
  };
  ASSERT_TRUE(Eventually([&] { return answered() != waiting.end(); }));
  const absl::Status refused = (*answered())->status;
  EXPECT_TRUE(Refused(refused, Reason::kDeviceRebuilding, {{"current", "1024"}, {"limit", "1024"}}));
  EXPECT_TRUE(GetErrorDetails(refused)->retry_after.has_value());
  daemon.vault().Signal(SIGCONT);
  int granted = 0;
  for (const auto& allocation : waiting) {
    ASSERT_TRUE(Eventually([&] { return allocation->answered.load(); }));
    granted += allocation->status.ok() ? 1 : 0;
  }
  EXPECT_EQ(granted, kWaiting);
}

// ---- Access(), for each of its reasons ----------------------------------------------------------------------

// A process with block `a` of device 0 mapped, and it is good.
void TakeBlock(Actor& actor) {
  actor.Do("allocate a 4096");
  actor.Do("map a");
  actor.Do("fill a 5");
  ASSERT_TRUE(Ok(actor.Ask("access a")));
}

void ExpectStale(Actor& actor, const char* why) {
  ASSERT_TRUE(Eventually([&] { return Says(actor.Ask("access a").status(), why); }))
      << actor.Ask("access a").status();
  EXPECT_TRUE(Refused(actor.Ask("access a"), Reason::kStale, {{"why", why}}));
  EXPECT_TRUE(Ok(actor.Ask("check a 5"))) << "its mapping is its own";
}

TEST(DevicesTest, AResetMakesBlocksStaleAndTheNextOnesAreOfTheNextGeneration) {
  TestDaemon daemon(TwoDevices());
  Actor actor(daemon);
  TakeBlock(actor);
  Actor other(daemon);
  other.Do("allocate a 4096 device=1");
  other.Do("map a");
  EXPECT_TRUE(Ok(daemon.inspector().ResetDevice(0)));
  ExpectStale(actor, "context rebuilt");
  EXPECT_TRUE(Ok(other.Ask("access a")));
  ASSERT_TRUE(BecomesReady(daemon, 0));
  EXPECT_EQ(DeviceOf(daemon, 0).generation(), 2u);
  EXPECT_EQ(actor.Allocate("b", 4096).generation, 2u);
  actor.Do("map b");
  EXPECT_TRUE(Ok(actor.Ask("access b")));
  // Freed by its owner, the old one's bytes come back.
  EXPECT_TRUE(Ok(actor.Ask("drop a")));
  // Over the broker's death the generation stays what it is.
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    for (const ChildInfo& child : ChildrenOf(daemon.vault().pid())) {
      if (child.name == "berth-broker" && child.pid != broker) return true;
    }
    return false;
  }));
  ASSERT_TRUE(BecomesReady(daemon, 0));
  EXPECT_EQ(DeviceOf(daemon, 0).generation(), 2u);
  actor.Quit();
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(DevicesTest, ADroppedDeviceIsTheFirstReasonAndStaysGone) {
  TestDaemon daemon(TwoDevices());
  Actor actor(daemon);
  TakeBlock(actor);
  EXPECT_TRUE(Ok(daemon.inspector().ResetDevice(0)));
  ExpectStale(actor, "context rebuilt");
  EXPECT_EQ(Must(daemon.inspector().DropDevice(0)).state(), v1::Device::DROPPED);
  ExpectStale(actor, "device state dropped");
  EXPECT_TRUE(Refused(actor.Ask("allocate b 4096"), Reason::kDeviceStopped));
  EXPECT_TRUE(Refused(daemon.inspector().EnableDevice(0), Reason::kDeviceStopped));
  EXPECT_TRUE(Refused(daemon.inspector().DropDevice(0), Reason::kDeviceStopped));
  EXPECT_TRUE(Eventually([&] { return WorkerOf(daemon, 0) == 0; }));
  EXPECT_TRUE(Ok(actor.Ask("allocate b 4096 device=1")));
  actor.Quit();
}

TEST(DevicesTest, ACleanStopIsSaidToReferences) {
  TestDaemon daemon(TwoDevices());
  Actor actor(daemon);
  TakeBlock(actor);
  daemon.Stop();
  ExpectStale(actor, "device shutting down");
  actor.Quit();
}

TEST(DevicesTest, AFreedBlockAndAnEndedSessionAreSaidToReferences) {
  TestDaemon daemon(TwoDevices());
  Actor owner(daemon);
  const BlockHandle handle = owner.Allocate("a", 4096);
  owner.Do("map a");
  owner.Do("fill a 5");
  Actor importer(daemon);
  owner.Do(absl::StrCat("grant-session a ", importer.session().value()));
  Actor ended(daemon);
  TakeBlock(ended);
  importer.Do(absl::StrCat("import a ", FormatHandle(handle)));
  importer.Do("map a");
  owner.Do("free a");
  ExpectStale(importer, "block freed");
  EXPECT_TRUE(Ok(daemon.inspector().EndSession(ended.session())));
  ExpectStale(ended, "lease ended");
  owner.Quit();
  importer.Quit();
  ended.Quit();
  daemon.ExpectBooksBack();
}

TEST(DevicesTest, WhoHasEndedItsSessionFindsNoLeaseThatHasNotEnded) {
  TestDaemon daemon(TwoDevices());
  for (int round = 0; round < 50; ++round) {
    Actor actor(daemon);
    TakeBlock(actor);
    actor.Do("end");
    ASSERT_TRUE(Refused(actor.Ask("access a"), Reason::kStale, {{"why", "lease ended"}})) << "round " << round;
    actor.Quit();
  }
  daemon.ExpectBooksBack();
}

TEST(DevicesTest, AnotherIncarnationIsSaidToReferencesBeforeAnybodyServes) {
  const std::string config = absl::StrCat(::testing::TempDir(), "/devices_test.toml");
  std::ofstream(config) << "";
  TestDaemon daemon({.flags = {absl::StrCat("--config=", config)}});
  Actor actor(daemon);
  TakeBlock(actor);
  // Brokers that do not get as far as to tell the clients that their sessions are over.
  std::ofstream(config) << "nonsense = 1\n";
  ASSERT_TRUE(Ok(daemon.inspector().ResetNode()));
  ExpectStale(actor, "other incarnation");
  daemon.Abandon();
  actor.Quit();
}

// ---- Watching -----------------------------------------------------------------------------------------------

// One WatchDevices call, in a thread; what it was told is kept.
class Watcher {
 public:
  explicit Watcher(TestDaemon& daemon)
      : session_(Must(Session::Open({.folder = daemon.folder(), .label = "watcher", .always_new = true}))),
        thread_([this] {
          status_ =
              Inspector(session_, &cancellation_).WatchDevices([&](const v1::WatchDevicesResponse& answer) {
                MutexLock lock(&mu_);
                told_.push_back(answer);
                return true;
              });
        }) {}
  ~Watcher() {
    if (thread_.joinable()) End().IgnoreError();
  }

  absl::Status End() {
    cancellation_.Cancel();
    thread_.join();
    return status_;
  }

  std::vector<v1::WatchDevicesResponse> told() const {
    MutexLock lock(&mu_);
    return told_;
  }
  // Whether the last word on the device comes to satisfy `condition`.
  bool Hears(uint32_t device, const std::function<bool(const v1::Device&)>& condition) const {
    return Eventually([&] {
      const auto told = this->told();
      return !told.empty() && condition(told.back().devices(static_cast<int>(device)));
    });
  }

 private:
  const std::shared_ptr<Session> session_;
  Cancellation cancellation_;
  absl::Status status_;
  mutable Mutex mu_;
  std::vector<v1::WatchDevicesResponse> told_;
  std::thread thread_;
};

TEST(DevicesTest, AWatcherIsToldTheStateFirstAndThenWhatBecomesOfIt) {
  TestDaemon daemon(TwoDevices());
  {
    Watcher watcher(daemon);
    ASSERT_TRUE(
        watcher.Hears(0, [](const v1::Device& device) { return device.state() == v1::Device::READY; }));
    EXPECT_EQ(watcher.told().front().devices_size(), 2);
    KillWorker(daemon, 0);
    EXPECT_TRUE(watcher.Hears(0, [](const v1::Device& device) {
      return device.state() == v1::Device::READY && device.restarts_left() == 2 &&
             device.last_failure() == "the worker ended: signal 9";
    }));
    EXPECT_TRUE(Ok(daemon.inspector().ResetDevice(1)));
    EXPECT_TRUE(watcher.Hears(1, [](const v1::Device& device) {
      return device.state() == v1::Device::READY && device.generation() == 2;
    }));
    EXPECT_TRUE(Ok(SetDeviceBudget(daemon, MiB(6))));
    EXPECT_TRUE(
        watcher.Hears(0, [](const v1::Device& device) { return device.budget_bytes() == MiB(6).count(); }));
    // One that comes late is told what is.
    Watcher late(daemon);
    EXPECT_TRUE(late.Hears(1, [](const v1::Device& device) { return device.generation() == 2; }));
    EXPECT_EQ(late.told().front().devices(0).budget_bytes(), MiB(6).count());
    EXPECT_TRUE(absl::IsCancelled(late.End()));
    EXPECT_TRUE(absl::IsCancelled(watcher.End()));
  }
  daemon.ExpectBooksBack();
}

TEST(DevicesTest, ASlowWatcherMissesStatesInBetweenAndNeverTheLatest) {
  TestDaemon daemon({.flags = {"--host-devices=64", "--host-bytes=64MiB"}});
  constexpr uint64_t kChanges = 1000;
  Subprocess watch =
      Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "devices", "--watch", "--json"},
                         .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION"}});
  // The budget of device 0, of each line that it prints.
  const auto next = [&] {
    v1::WatchDevicesResponse answer;
    const std::string line = Must(watch.ReadLine());
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &answer).ok()) << line;
    return answer.devices_size() == 64 ? answer.devices(0).budget_bytes() : 0;
  };
  ASSERT_GT(next(), kChanges);
  watch.Signal(SIGSTOP);
  for (uint64_t i = 1; i <= kChanges; ++i) {
    EXPECT_TRUE(Ok(SetDeviceBudget(daemon, Bytes(i))));
  }
  watch.Signal(SIGCONT);
  uint64_t lines = 0;
  for (uint64_t before = 0, budget = 0; budget != kChanges; before = budget) {
    budget = next();
    // What came before the changes is from the start.
    if (budget > kChanges) continue;
    EXPECT_GE(budget, before) << "out of order";
    ++lines;
  }
  EXPECT_LT(lines, kChanges / 2);
  watch.Kill();
}

TEST(DevicesTest, WatchersHaveALimitAndAStopEndsThem) {
  const std::string errors = absl::StrCat(::testing::TempDir(), "/devices_test.errors");
  std::remove(errors.c_str());
  TestDaemonOptions options = TwoDevices();
  options.errors = errors;
  TestDaemon daemon(options);
  RawClient client = RawClient::Open(daemon.folder());
  const auto stub = v1::DeviceService::NewStub(client.grpc_channel());
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchDevicesResponse>> reader;
  };
  const auto start = [&](bool known = true) {
    auto watch = std::make_unique<Watch>();
    if (known) watch->context.AddMetadata(kCredentialsHeader, EncodeCredentials(client.credentials()));
    watch->reader = stub->WatchDevices(&watch->context, v1::WatchDevicesRequest());
    return watch;
  };
  v1::WatchDevicesResponse devices;
  std::vector<std::unique_ptr<Watch>> watches;
  for (int i = 0; i < 8; ++i) {
    watches.push_back(start());
    ASSERT_TRUE(watches.back()->reader->Read(&devices)) << i;
  }
  auto refused = start();
  EXPECT_FALSE(refused->reader->Read(&devices));
  EXPECT_TRUE(Refused(FromGrpc(refused->reader->Finish()), Reason::kLimit,
                      {{"what", "watches of a connection"}, {"current", "8"}, {"limit", "8"}}));
  auto unknown = start(/*known=*/false);
  EXPECT_FALSE(unknown->reader->Read(&devices));
  EXPECT_TRUE(Refused(FromGrpc(unknown->reader->Finish()), Reason::kBadCredentials));
  // One that leaves makes room.
  watches.back()->context.TryCancel();
  watches.back()->reader->Finish();
  watches.pop_back();
  ASSERT_TRUE(Eventually([&] {
    auto next = start();
    return next->reader->Read(&devices);
  }));
  // They are waiting, as watchers are: a connection that nobody reads is found broken before what came on it is read.
  std::vector<absl::Status> ends(watches.size());
  std::vector<std::thread> readers;
  for (size_t i = 0; i < watches.size(); ++i) {
    readers.emplace_back([&, i] {
      for (v1::WatchDevicesResponse more; watches[i]->reader->Read(&more);) {
      }
      ends[i] = FromGrpc(watches[i]->reader->Finish());
    });
  }
  daemon.Stop();
  for (std::thread& reader : readers) reader.join();
  std::stringstream said;
  said << std::ifstream(errors).rdbuf();
  // On a machine that is too busy for a broker to answer in its time it leaves them, or is killed.
  const bool late = absl::StrContains(said.str(), "watches are not answered in 350 ms") ||
                    absl::StrContains(said.str(), "the broker did not stop in 500 ms: killed");
  for (const absl::Status& end : ends) {
    EXPECT_TRUE(absl::IsUnavailable(end)) << end;
    EXPECT_TRUE(late || Refused(end, Reason::kShuttingDown)) << end << "\n" << said.str();
  }
}

TEST(DevicesTest, WhoeverIsNoOperatorChangesNoDevice) {
  TestDaemon daemon(TwoDevices());
  RawClient client = RawClient::Open(daemon.folder());
  EXPECT_TRUE(Refused(client.Call(&Admin::EnableDevice, {}), Reason::kAdminOnly, {{"verb", "EnableDevice"}}));
  EXPECT_TRUE(
      Refused(client.Call(&Admin::RestartDevice, {}), Reason::kAdminOnly, {{"verb", "RestartDevice"}}));
  EXPECT_TRUE(Refused(client.Call(&Admin::ResetDevice, {}), Reason::kAdminOnly, {{"verb", "ResetDevice"}}));
  EXPECT_TRUE(Refused(client.Call(&Admin::DropDevice, {}), Reason::kAdminOnly, {{"verb", "DropDevice"}}));
  EXPECT_TRUE(
      Refused(daemon.inspector().EnableDevice(7), Reason::kNotFound, {{"kind", "device"}, {"id", "7"}}));
  EXPECT_EQ(DeviceOf(daemon, 0).state(), v1::Device::READY);
  EXPECT_EQ(DeviceOf(daemon, 0).generation(), 1u);
}

}  // namespace
}  // namespace berth::testing
