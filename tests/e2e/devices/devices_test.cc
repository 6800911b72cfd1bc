// Devices in and out of service, across processes: workers that die, hang or cannot be killed, lost memory, and
// watchers. Other devices stay unaffected meanwhile.

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
#include <string>
#include <thread>
#include <vector>

#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/cancellation.h>
#include <berth/error.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/mutex.h"
#include "common/wire/session_credentials.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/damaged_ledger.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

using Admin = v1::AdminService::Stub;

pid_t WorkerOf(TestDaemon& daemon, uint32_t device) {
  for (const ChildInfo& child : ChildrenOf(daemon.supervisor().pid())) {
    if (child.name == absl::StrCat("berth-worker", device)) return child.pid;
  }
  return 0;
}

v1::Device DeviceOf(TestDaemon& daemon, uint32_t device) {
  return Must(daemon.inspector().ListDevices(), "devices").devices(static_cast<int>(device));
}

// Waits for the device, over a broker's death, too.
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

TEST(DevicesTest, HungWorkerIsReplacedAndNextRepeatsCall) {
  TestDaemonOptions options = TwoDevices("1s");
  // A call about many bytes has 13 s more: a worker that the machine stalls does not count as hung.
  options.config = "[workers]\ncall_deadline_per_gib = \"100s\"\n";
  TestDaemon daemon(options);
  Actor actor(daemon);
  Actor other(daemon);
  actor.Do("allocate a 4096");
  actor.Do("map a");
  actor.Do("fill a 7");
  const pid_t hung = WorkerOf(daemon, 0);
  // As in a driver call that does not return.
  ASSERT_EQ(::kill(hung, SIGSTOP), 0);
  ASSERT_TRUE(Eventually([&] { return StateOf(hung) == 'T'; }));
  actor.SendLine("allocate b 4096");
  EXPECT_TRUE(Ok(other.Ask(absl::StrCat("allocate c ", MiB(128).count(), " device=1"))));
  EXPECT_TRUE(Ok(other.Ask("acquire p")));
  EXPECT_TRUE(Ok(actor.Answer()));
  EXPECT_NE(WorkerOf(daemon, 0), hung);
  EXPECT_FALSE(IsAlive(hung));
  const v1::Device device = DeviceOf(daemon, 0);
  EXPECT_EQ(device.state(), v1::Device::READY);
  // The next worker may be stalled as well.
  EXPECT_LE(device.restarts_left(), 2u);
  EXPECT_TRUE(absl::StrContains(device.last_failure(), "a driver call did not end within 1.")) << device.last_failure();
  EXPECT_EQ(DeviceOf(daemon, 1).restarts_left(), 3u);
  // The worker's death costs no data and no lease.
  EXPECT_EQ(device.generation(), 1u);
  EXPECT_TRUE(Ok(actor.Ask("access a")));
  EXPECT_TRUE(Ok(actor.Ask("check a 7")));
  actor.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(DevicesTest, FourthDeathStopsDeviceUntilOperatorEnablesIt) {
  TestDaemon daemon(TwoDevices());
  Actor actor(daemon);
  Actor other(daemon);
  actor.Do("allocate a 4096");
  for (int death = 0; death < 3; ++death) KillWorker(daemon, 0);
  EXPECT_EQ(DeviceOf(daemon, 0).restarts_left(), 0u);
  // Requests that wait for the worker are answered once no worker will follow.
  const pid_t last = WorkerOf(daemon, 0);
  ASSERT_EQ(::kill(last, SIGSTOP), 0);
  ASSERT_TRUE(Eventually([&] { return StateOf(last) == 'T'; }));
  actor.SendLine("allocate b 4096");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.reserved > 0; }));
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
  daemon.ExpectAccountsBack();
}

TEST(DevicesTest, OrderedRestartCostsNoDataAndDoesNotCount) {
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
  daemon.ExpectAccountsBack();
}

TEST(DevicesTest, UnkillableWorkerStopsItsDeviceUntilItEnds) {
  TestDaemon daemon(TwoDevices("500ms"));
  Actor actor(daemon);
  Actor other(daemon);
  const pid_t worker = WorkerOf(daemon, 0);
  // Holds the worker at its exit, as an uninterruptible driver call would.
  if (::ptrace(PTRACE_SEIZE, worker, nullptr, PTRACE_O_TRACEEXIT) < 0) {
    GTEST_SKIP() << "no right to trace: " << strerror(errno);
  }
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  int stopped = 0;
  ASSERT_EQ(::waitpid(worker, &stopped, __WALL), worker);
  actor.SendLine("allocate a 4096");
  EXPECT_TRUE(Ok(other.Ask("allocate c 4096 device=1")));
  const absl::Status refused = actor.Answer().status();
  EXPECT_TRUE(Refused(refused, Reason::kDeviceStopped));
  EXPECT_TRUE(Says(refused, "it did not end within 2 s of SIGKILL")) << refused;
  EXPECT_TRUE(IsAlive(worker));
  EXPECT_EQ(DeviceOf(daemon, 0).state(), v1::Device::STOPPED);
  EXPECT_TRUE(Refused(daemon.inspector().EnableDevice(0), Reason::kDeviceStopped));
  EXPECT_TRUE(Ok(other.Ask("allocate d 4096 device=1")));
  // After the detach the worker ends, and the device may serve again.
  ::ptrace(PTRACE_DETACH, worker, nullptr, nullptr);
  ASSERT_TRUE(Eventually([&] { return daemon.inspector().EnableDevice(0).ok(); }));
  EXPECT_TRUE(Ok(actor.Ask("allocate a 4096")));
  EXPECT_FALSE(IsAlive(worker));
  actor.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(DevicesTest, WaitingAllocationIsMadeByNextDaemon) {
  TestDaemonOptions options = TwoDevices();
  // The stop waits out the time that the stopped worker has to end.
  options.environment = {"BERTH_TEST_PATIENCE=1"};
  TestDaemon daemon(options);
  Actor actor(daemon);
  const pid_t stopped = WorkerOf(daemon, 0);
  ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
  ASSERT_TRUE(Eventually([&] { return StateOf(stopped) == 'T'; }));
  actor.SendLine("allocate a 4096");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.reserved > 0; }));
  daemon.Stop();
  daemon.StartAgain();
  const absl::Status answer = actor.Answer().status();
  EXPECT_TRUE(answer.ok()) << answer;
  actor.Quit();
}

TEST(DevicesTest, AllocationsBeyondUserShareAreRejectedForRetry) {
  TestDaemon daemon({.flags = {"--host-bytes=16GiB", "--device-budget=16GiB"}});
  // One user's share of a device's waiting places.
  constexpr int kWaiting = 512;
  struct Allocation {
    grpc::ClientContext context;
    v1::AllocateBlockRequest request;
    v1::AllocateBlockResponse response;
    absl::Status status = absl::UnknownError("not answered");
    std::atomic<bool> answered = false;
  };
  // One channel's limit of open requests is lower, so the test needs two.
  std::vector<RawClient> clients;
  for (int i = 0; i < 2; ++i) clients.push_back(RawClient::Open(daemon.folder()));
  std::vector<std::unique_ptr<v1::MemoryService::Stub>> stubs;
  for (RawClient& client : clients) stubs.push_back(v1::MemoryService::NewStub(client.grpc_channel()));
  // The supervisor, which would start the next worker, is stopped.
  daemon.supervisor().Signal(SIGSTOP);
  EXPECT_EQ(Must(daemon.inspector().RestartDevice(0)).state(), v1::Device::REBUILDING);
  std::vector<std::unique_ptr<Allocation>> waiting;
  for (int i = 0; i < kWaiting + 1; ++i) {
    RawClient& client = clients[i % 2];
    Allocation& allocation = *waiting.emplace_back(std::make_unique<Allocation>());
    allocation.context.AddMetadata(kCredentialsHeader, EncodeCredentials(client.credentials()));
    *allocation.request.mutable_request() = client.NextTag();
    allocation.request.set_bytes(1);
    // An atomic that the answering thread loads: ThreadSanitizer does not see how gRPC orders the two.
    allocation.answered = false;
    stubs[i % 2]->async()->AllocateBlock(&allocation.context, &allocation.request, &allocation.response,
                                         [&allocation](const grpc::Status& status) {
                                           ASSERT_FALSE(allocation.answered);
                                           allocation.status = FromGrpc(status);
                                           allocation.answered = true;
                                         });
  }
  // The refused request is the last to arrive, which can be any of them.
  const auto answered = [&] {
    return std::find_if(waiting.begin(), waiting.end(), [](const auto& one) { return one->answered.load(); });
  };
  ASSERT_TRUE(Eventually([&] { return answered() != waiting.end(); }));
  const absl::Status refused = (*answered())->status;
  EXPECT_TRUE(Refused(refused, Reason::kDeviceRebuilding, {{"what", "waiting_allocations_per_device"}}));
  EXPECT_TRUE(GetErrorDetails(refused)->retry_after.has_value());
  daemon.supervisor().Signal(SIGCONT);
  int granted = 0;
  for (const auto& allocation : waiting) {
    ASSERT_TRUE(Eventually([&] { return allocation->answered.load(); }));
    granted += allocation->status.ok() ? 1 : 0;
  }
  EXPECT_EQ(granted, kWaiting);
}

// ---- Access(), for each of its reasons ----------------------------------------------------------------------

// Maps block `a` of device 0, with good access.
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

TEST(DevicesTest, ResetMakesBlocksStaleAndRaisesGeneration) {
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
  // Once its owner frees it, the bytes of the old block come back.
  EXPECT_TRUE(Ok(actor.Ask("drop a")));
  // The broker's death does not change the generation.
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    for (const ChildInfo& child : ChildrenOf(daemon.supervisor().pid())) {
      if (child.name == "berth-broker" && child.pid != broker) return true;
    }
    return false;
  }));
  ASSERT_TRUE(BecomesReady(daemon, 0));
  EXPECT_EQ(DeviceOf(daemon, 0).generation(), 2u);
  actor.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(DevicesTest, DroppedDeviceIsFirstReasonAndStaysDropped) {
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

TEST(DevicesTest, CleanStopMakesReferencesStale) {
  TestDaemon daemon(TwoDevices());
  // At its end it waits for a daemon that takes its block back.
  Actor actor(daemon, {.environment = {"BERTH_TEST_PATIENCE=1"}});
  TakeBlock(actor);
  daemon.Stop();
  ExpectStale(actor, "device shutting down");
  actor.Quit();
}

TEST(DevicesTest, FreedBlockAndEndedSessionMakeReferencesStale) {
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
  daemon.ExpectAccountsBack();
}

TEST(DevicesTest, EndedSessionLeavesNoLiveLease) {
  TestDaemon daemon(TwoDevices());
  for (uint64_t round = 0; round < GateOrSoak(10, 50); ++round) {
    Actor actor(daemon);
    TakeBlock(actor);
    actor.Do("end");
    ASSERT_TRUE(Refused(actor.Ask("access a"), Reason::kStale, {{"why", "lease ended"}})) << "round " << round;
    actor.Quit();
  }
  daemon.ExpectAccountsBack();
}

TEST(DevicesTest, ResetEndsLeasesBeforeBrokerServes) {
  const std::string config = absl::StrCat(::testing::TempDir(), "/devices_test.toml");
  std::ofstream(config) << "";
  TestDaemon daemon({.flags = {absl::StrCat("--config=", config)}});
  Actor actor(daemon);
  TakeBlock(actor);
  DamageLedger(daemon);
  // No later broker starts far enough to refuse the clients' sessions.
  std::ofstream(config) << "nonsense = 1\n";
  ASSERT_TRUE(Ok(ResetDamaged(daemon)));
  ExpectStale(actor, "lease ended");
  daemon.Abandon();
  actor.Quit();
}

// ---- Watching -----------------------------------------------------------------------------------------------

// One WatchDevices call on a thread; records its updates.
class Watcher {
 public:
  explicit Watcher(TestDaemon& daemon)
      : session_(Must(Session::Open({.folder = daemon.folder(), .label = "watcher", .always_new = true}))),
        thread_([this] {
          status_ =
              Inspector(session_, &cancellation_).WatchDevices([&](const v1::WatchDevicesResponse& answer) {
                MutexLock lock(&mu_);
                received_.push_back(answer);
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

  std::vector<v1::WatchDevicesResponse> received() const {
    MutexLock lock(&mu_);
    return received_;
  }
  // Whether the latest update of the device comes to satisfy `condition`.
  bool Hears(uint32_t device, const std::function<bool(const v1::Device&)>& condition) const {
    return Eventually([&] {
      const auto received = this->received();
      return !received.empty() && condition(received.back().devices(static_cast<int>(device)));
    });
  }

 private:
  const std::shared_ptr<Session> session_;
  Cancellation cancellation_;
  absl::Status status_;
  mutable Mutex mu_;
  std::vector<v1::WatchDevicesResponse> received_;
  std::thread thread_;
};

TEST(DevicesTest, WatcherReceivesStateThenChanges) {
  TestDaemon daemon(TwoDevices());
  {
    Watcher watcher(daemon);
    ASSERT_TRUE(
        watcher.Hears(0, [](const v1::Device& device) { return device.state() == v1::Device::READY; }));
    EXPECT_EQ(watcher.received().front().devices_size(), 2);
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
    // A late watcher gets the current state first.
    Watcher late(daemon);
    EXPECT_TRUE(late.Hears(1, [](const v1::Device& device) { return device.generation() == 2; }));
    EXPECT_EQ(late.received().front().devices(0).budget_bytes(), MiB(6).count());
    EXPECT_TRUE(absl::IsCancelled(late.End()));
    EXPECT_TRUE(absl::IsCancelled(watcher.End()));
  }
  daemon.ExpectAccountsBack();
}

TEST(DevicesTest, SlowWatcherReceivesLatestState) {
  TestDaemon daemon({.flags = {"--host-devices=64", "--host-bytes=64MiB"}});
  const uint64_t changes = GateOrSoak(300, 1000);
  Subprocess watch =
      Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "devices", "--watch", "--json"},
                         .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION"}});
  // The budget of device 0 in the next line printed.
  const auto next = [&] {
    v1::WatchDevicesResponse answer;
    const std::string line = Must(watch.ReadLine());
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &answer).ok()) << line;
    return answer.devices_size() == 64 ? answer.devices(0).budget_bytes() : 0;
  };
  ASSERT_GT(next(), changes);
  watch.Signal(SIGSTOP);
  for (uint64_t i = 1; i <= changes; ++i) {
    EXPECT_TRUE(Ok(SetDeviceBudget(daemon, Bytes(i))));
  }
  watch.Signal(SIGCONT);
  uint64_t lines = 0;
  for (uint64_t before = 0, budget = 0; budget != changes; before = budget) {
    budget = next();
    // Lines from before the changes show the budget at the start.
    if (budget > changes) continue;
    EXPECT_GE(budget, before) << "out of order";
    ++lines;
  }
  EXPECT_LT(lines, changes / 2);
  watch.Kill();
}

TEST(DevicesTest, WatchersAreLimitedAndEndAtStop) {
  TestDaemonOptions options = TwoDevices();
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
  // A watcher that leaves frees its place.
  watches.back()->context.TryCancel();
  watches.back()->reader->Finish();
  watches.pop_back();
  ASSERT_TRUE(Eventually([&] {
    auto next = start();
    return next->reader->Read(&devices);
  }));
  // The watchers must be waiting: a connection that no client reads is found broken before its pending data is read.
  std::vector<absl::Status> ends(watches.size());
  std::vector<std::thread> readers;
  for (size_t i = 0; i < watches.size(); ++i) {
    readers.emplace_back([&, i] {
      for (v1::WatchDevicesResponse more; watches[i]->reader->Read(&more);) {
      }
      ends[i] = FromGrpc(watches[i]->reader->Finish());
    });
  }
  // For watchers a stop is a pause: the call is cut off, to be sent to the next daemon.
  daemon.Stop();
  for (std::thread& reader : readers) reader.join();
  for (const absl::Status& end : ends) EXPECT_TRUE(absl::IsUnavailable(end)) << end;
}

TEST(DevicesTest, OnlyOperatorsChangeDevices) {
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
