// CUDA_IPC blocks and their context worker: which client gets which kind, and the effects of that process's death.

#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/os/named_memory.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::string Handle(const BlockHandle& handle) { return FormatHandle(handle); }

v1::Device OnlyDevice(TestDaemon& daemon) {
  return Must(daemon.inspector().ListDevices(), "devices").devices(0);
}

v1::Device::State ContextState(TestDaemon& daemon) { return OnlyDevice(daemon).context_worker().state(); }

// Kills the context worker, which must exist.
void KillContext(TestDaemon& daemon) {
  ASSERT_EQ(daemon.context_workers().size(), 1u);
  ::kill(daemon.context_workers()[0], SIGKILL);
}

// Two processes that have a block of each kind mapped: "f" is an FD block, "i" a CUDA_IPC block.
struct Both {
  explicit Both(const TestDaemon& daemon) : owner(daemon), importer(daemon) {
    for (const char* const name : {"f", "i"}) {
      const std::string kind = name[0] == 'f' ? "fd" : "ipc";
      handle = owner.Allocate(name, 4 * kMiB, kind);
      owner.Do(absl::StrCat("map ", name));
      owner.Do(absl::StrCat("fill ", name, " 7"));
      owner.Do(absl::StrCat("grant-session ", name, " ", importer.session().value()));
      importer.Do(absl::StrCat("import ", name, " ", Handle(handle)));
      importer.Do(absl::StrCat("map ", name));
      importer.Do(absl::StrCat("check ", name, " 7"));
    }
  }
  Actor owner;
  Actor importer;
  // The handle of "i".
  BlockHandle handle;
};

TEST(ContextsTest, RequestedExportKindIsReported) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("allocate a 1");
  actor.Do("allocate b 1 kind=any");
  EXPECT_TRUE(daemon.context_workers().empty()) << "nobody has asked for a context";
  EXPECT_EQ(ContextState(daemon), v1::Device::IDLE);
  actor.Do("allocate c 1 kind=ipc");
  EXPECT_EQ(daemon.context_workers().size(), 1u);
  EXPECT_EQ(ContextState(daemon), v1::Device::READY);
  const v1::ListBlocksResponse blocks = Must(daemon.inspector().ListBlocks());
  ASSERT_EQ(blocks.blocks_size(), 3);
  EXPECT_EQ(blocks.blocks(0).export_kind(), v1::EXPORT_KIND_FD);
  EXPECT_EQ(blocks.blocks(1).export_kind(), v1::EXPORT_KIND_FD);
  EXPECT_EQ(blocks.blocks(2).export_kind(), v1::EXPORT_KIND_CUDA_IPC);
  EXPECT_EQ(blocks.blocks(2).bytes(), 2 * kMiB);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(ContextsTest, UnofferedKindIsRejected) {
  const std::string file = absl::StrCat("/tmp/berth-no-ipc-", ::getpid(), ".toml");
  std::ofstream(file) << "[memory]\ncuda_ipc = false\n";
  {
    TestDaemon daemon({.flags = {absl::StrCat("--config=", file)}});
    Actor actor(daemon);
    EXPECT_TRUE(Refused(actor.Ask("allocate a 1 kind=ipc"), Reason::kExportKind, {{"kind", "CUDA_IPC"}}));
    EXPECT_TRUE(Ok(actor.Ask("allocate a 1 kind=any")));
    EXPECT_FALSE(OnlyDevice(daemon).has_context_worker());
    actor.Quit();
    daemon.ExpectAccountsBack();
  }
  std::filesystem::remove(file);
}

TEST(ContextsTest, ImporterNotTakingKindIsRejected) {
  TestDaemon daemon;
  Actor actor(daemon);
  const std::string ipc = actor.Do("allocate a 1 kind=ipc");
  const std::string fd = actor.Do("allocate b 1");
  const Accounts before = daemon.TakeAccounts();
  EXPECT_TRUE(Refused(actor.Ask(absl::StrCat("import c ", ipc, " kind=fd")), Reason::kExportKind,
                      {{"kind", "CUDA_IPC"}}));
  EXPECT_TRUE(
      Refused(actor.Ask(absl::StrCat("import c ", fd, " kind=ipc")), Reason::kExportKind, {{"kind", "FD"}}));
  // CUDA IPC cannot enforce a read-only import.
  EXPECT_TRUE(
      Refused(actor.Ask(absl::StrCat("import c ", ipc, " ro")), Reason::kExportKind, {{"kind", "CUDA_IPC"}}));
  EXPECT_TRUE(Refused(actor.Ask("publish a weights"), Reason::kExportKind));
  EXPECT_TRUE(daemon.AccountsReturnTo(before));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(ContextsTest, ImportsOfSameProcessShareMapping) {
  TestDaemon daemon;
  Actor actor(daemon);
  const std::string handle = actor.Do("allocate a 1 kind=ipc");
  actor.Do("map a");
  actor.Do("fill a 3");
  actor.Do(absl::StrCat("import b ", handle));
  actor.Do("map b");
  actor.Do("unmap a");
  actor.Do("drop a");
  // The remaining import holds the mapping open, and the daemon knows that.
  EXPECT_TRUE(Ok(actor.Ask("check b 3")));
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.quarantined == 2 * kMiB; }));
  actor.Do("drop b");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(ContextsTest, DeathOfContextWorkerMakesOnlyItsBlocksStale) {
  TestDaemon daemon;
  Both both(daemon);
  KillContext(daemon);
  for (Actor* const actor : {&both.owner, &both.importer}) {
    EXPECT_TRUE(Eventually([&] { return Refused(actor->Ask("access i"), Reason::kStale); }));
    const absl::Status stale = actor->Ask("access i").status();
    EXPECT_TRUE(absl::StrContains(stale.message(), "context rebuilt")) << stale;
    EXPECT_TRUE(Ok(actor->Ask("access f")));
    EXPECT_TRUE(Ok(actor->Ask("check f 7")));
  }
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts&) { return true; }));
  EXPECT_TRUE(Refused(both.importer.Ask(absl::StrCat("import j ", Handle(both.handle))), Reason::kStale));
  // Bytes of a stale block are charged to its owner until the owner releases it; then they are free at once.
  EXPECT_EQ(daemon.TakeAccounts().live, 8 * kMiB);
  both.importer.Do("drop i");
  both.owner.Do("drop i");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.live == 4 * kMiB; }));
  EXPECT_EQ(daemon.TakeAccounts().blocks, 1u);
  // The next allocation of this kind starts the next context worker.
  both.owner.Do("allocate n 1 kind=ipc");
  both.owner.Do("map n");
  EXPECT_TRUE(Ok(both.owner.Ask("access n")));
  EXPECT_TRUE(Ok(both.importer.Ask("check f 7")));
  both.owner.Quit();
  both.importer.Quit();
  daemon.ExpectAccountsBack();
}

TEST(ContextsTest, MappedStaleBlockIsQuarantined) {
  TestDaemon daemon;
  Both both(daemon);
  KillContext(daemon);
  ASSERT_TRUE(Eventually([&] { return Refused(both.importer.Ask("access i"), Reason::kStale); }));
  both.owner.Do("drop i");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.quarantined == 4 * kMiB; }));
  both.importer.Kill();
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.quarantined == 0; }));
  both.owner.Quit();
  daemon.ExpectAccountsBack();
}

TEST(ContextsTest, FourthContextDeathStopsOnlyContext) {
  TestDaemon daemon({.flags = {"--context-idle=30s"}});
  Actor actor(daemon);
  actor.Do("allocate f 1");
  for (int death = 1; death <= 4; ++death) {
    actor.Do("allocate i 1 kind=ipc");
    KillContext(daemon);
    const v1::Device::State then = death < 4 ? v1::Device::IDLE : v1::Device::STOPPED;
    ASSERT_TRUE(Eventually([&] { return ContextState(daemon) == then; })) << death;
    actor.Do("drop i");
  }
  EXPECT_TRUE(Refused(actor.Ask("allocate i 1 kind=ipc"), Reason::kDeviceStopped));
  EXPECT_EQ(OnlyDevice(daemon).state(), v1::Device::READY);
  EXPECT_TRUE(Ok(actor.Ask("allocate g 1")));
  EXPECT_TRUE(Ok(daemon.inspector().EnableDevice(0)));
  EXPECT_TRUE(Ok(actor.Ask("allocate i 1 kind=ipc")));
  EXPECT_TRUE(Ok(daemon.inspector().RestartContext(0)));
  EXPECT_TRUE(Eventually([&] { return ContextState(daemon) == v1::Device::IDLE; }));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(ContextsTest, IdleContextWorkerEndsAndNextIsAnother) {
  TestDaemon daemon;
  Actor actor(daemon);
  const BlockHandle first = actor.Allocate("i", 1, "ipc");
  actor.Do("drop i");
  EXPECT_TRUE(Eventually([&] { return daemon.context_workers().empty(); }));
  EXPECT_TRUE(Eventually([&] { return ContextState(daemon) == v1::Device::IDLE; }));
  EXPECT_EQ(OnlyDevice(daemon).context_worker().last_failure(), "");
  EXPECT_EQ(OnlyDevice(daemon).context_worker().restarts_left(), 3u);
  const BlockHandle second = actor.Allocate("i", 1, "ipc");
  EXPECT_EQ(second.generation, first.generation + 1);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(ContextsTest, KilledProcessesLeaveNoBlocks) {
  TestDaemon daemon;
  Both both(daemon);
  both.importer.process().Kill();
  both.owner.process().Kill();
  both.importer.process().Wait();
  both.owner.process().Wait();
  daemon.ExpectAccountsBack();
  EXPECT_TRUE(std::filesystem::is_empty(absl::StrCat(daemon.folder(), "/ipc")));
}

TEST(ContextsTest, IpcBlocksSurviveBrokerDeath) {
  TestDaemon daemon({.flags = {"--context-idle=30s"}});
  Actor actor(daemon);
  actor.Do("allocate i 1 kind=ipc");
  actor.Do("map i");
  actor.Do("fill i 5");
  const pid_t context = daemon.context_workers().at(0);
  const pid_t broker = daemon.broker();
  ::kill(broker, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !IsAlive(broker); }));
  Actor next(daemon);
  next.Do("allocate i 1 kind=ipc");
  EXPECT_EQ(daemon.context_workers().at(0), context);
  EXPECT_TRUE(Ok(actor.Ask("access i")));
  EXPECT_TRUE(Ok(actor.Ask("check i 5")));
  EXPECT_TRUE(absl::StrContains(DescribeFds(context), "berth-named"));
  EXPECT_TRUE(Ok(actor.Ask("drop i")));
  EXPECT_TRUE(Ok(next.Ask("drop i")));
  EXPECT_TRUE(Eventually([&] { return !absl::StrContains(DescribeFds(context), "berth-named"); }));
  next.Quit();
  actor.Quit();
}

TEST(ContextsTest, StopRemovesIpcMemory) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("allocate i 1 kind=ipc");
  EXPECT_FALSE(std::filesystem::is_empty(absl::StrCat(daemon.folder(), "/ipc")));
  daemon.Stop();
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(daemon.folder(), "/ipc")));
  actor.Kill();
}

// Captures the daemon's standard error in a file for the lifetime of this object.
class CapturedErrors {
 public:
  CapturedErrors() : before_(::dup(STDERR_FILENO)) {
    const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ::dup2(file.get(), STDERR_FILENO);
  }
  ~CapturedErrors() {
    ::dup2(before_.get(), STDERR_FILENO);
    std::filesystem::remove(path_);
  }
  std::string Read() const {
    std::ifstream file(path_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  const UniqueFd before_;
  const std::string path_ = absl::StrCat("/tmp/berth-errors-", ::getpid());
};

TEST(ContextsTest, HandleAppearsOnlyInAnswer) {
  const CapturedErrors errors;
  TestDaemon daemon;
  RawClient client = RawClient::Open(daemon.folder());
  v1::AllocateBlockRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_bytes(1);
  request.add_export_kinds(v1::EXPORT_KIND_CUDA_IPC);
  const auto allocated = Must(client.Call(&v1::MemoryService::Stub::AllocateBlock, request));
  const std::string& handle = allocated.ipc_handle();
  ASSERT_EQ(handle.size(), 64u);
  EXPECT_EQ(client.Call(&v1::MemoryService::Stub::AllocateBlock, request)->ipc_handle(), handle)
      << "a repeat";
  // The channel carries an import without an fd.
  const Message message = Must(client.channel().Receive());
  attach::Delivery delivery;
  ASSERT_EQ(message.bytes.size(), sizeof(delivery));
  memcpy(&delivery, message.bytes.data(), sizeof(delivery));
  EXPECT_EQ(delivery.what, attach::DeliveryKind::kHandleBlock);
  EXPECT_EQ(delivery.import, allocated.import());
  EXPECT_TRUE(message.fds.empty());

  std::string shown;
  for (const char* const verb : {"blocks", "bytes", "devices", "status"}) {
    for (const char* const form : {"", "--json"}) {
      SubprocessOptions options = {.argv = {ProgramPath("client/cli/berth"), verb},
                                   .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder())}};
      if (*form != '\0') options.argv.push_back(form);
      shown += Subprocess::Start(options).ReadAll();
    }
  }
  EXPECT_TRUE(absl::StrContains(shown, "CUDA_IPC")) << shown;
  ::kill(daemon.context_workers().at(0), SIGKILL);
  EXPECT_TRUE(Eventually([&] { return ContextState(daemon) == v1::Device::IDLE; }));
  daemon.Stop();
  shown += errors.Read();
  EXPECT_TRUE(absl::StrContains(shown, "context worker of device 0 exited")) << shown;
  // The unguessable part of the handle, in any encoding.
  const absl::string_view secret = absl::string_view(handle).substr(16, 16);
  EXPECT_FALSE(absl::StrContains(shown, secret));
  EXPECT_FALSE(absl::StrContains(shown, absl::BytesToHexString(secret)));
  EXPECT_FALSE(absl::StrContains(shown, absl::Base64Escape(handle).substr(24, 16)));
  EXPECT_FALSE(absl::StrContains(allocated.block().ShortDebugString(), absl::CHexEscape(secret)));
}

v1::AllocateBlockResponse AllocateByHandle(RawClient& client) {
  v1::AllocateBlockRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_bytes(1);
  request.add_export_kinds(v1::EXPORT_KIND_CUDA_IPC);
  return Must(client.Call(&v1::MemoryService::Stub::AllocateBlock, request));
}

IpcHandle ToHandle(const std::string& bytes) {
  IpcHandle handle;
  EXPECT_EQ(bytes.size(), sizeof(handle));
  if (bytes.size() == sizeof(handle)) memcpy(&handle, bytes.data(), sizeof(handle));
  return handle;
}

// Runs `attempt` in a process of another user, where this process may create one. Returns its exit status.
int AsAnotherUser(const std::function<int()>& attempt) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (IsRoot() && (::setgroups(1, &kClientsGroup) < 0 || ::setgid(65'534) < 0 || ::setuid(65'534) < 0)) ::_exit(99);
    ::_exit(attempt());
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ContextsTest, HandleHolderCannotResizeBlock) {
  TestDaemon daemon;
  Both both(daemon);
  RawClient attacker = RawClient::Open(daemon.folder());
  both.owner.Do(absl::StrCat("grant-session i ", attacker.session_credentials().session.value()));
  v1::ImportBlockRequest import;
  *import.mutable_request() = attacker.NextTag();
  import.add_export_kinds(v1::EXPORT_KIND_CUDA_IPC);
  const v1::ListBlocksResponse blocks = Must(daemon.inspector().ListBlocks());
  for (const v1::Block& block : blocks.blocks()) {
    if (block.export_kind() == v1::EXPORT_KIND_CUDA_IPC) *import.mutable_handle() = block.handle();
  }
  const IpcHandle handle =
      ToHandle(Must(attacker.Call(&v1::MemoryService::Stub::ImportBlock, import)).ipc_handle());
  const Accounts before = daemon.TakeAccounts();
  EXPECT_EQ(AsAnotherUser([&] {
              const absl::StatusOr<UniqueFd> fd = OpenNamedMemory(daemon.folder(), handle);
              if (!fd.ok()) return 1;
              if (::ftruncate(fd->get(), 0) == 0) return 2;
              if (::ftruncate(fd->get(), 64 * kMiB) == 0) return 3;
              if (::pwrite(fd->get(), "x", 1, 4 * kMiB) == 1) return 4;
              if (::fallocate(fd->get(), 0, 0, 64 * kMiB) == 0) return 5;
              // Without root, the attempt is the daemon's own user's.
              const std::string own = absl::StrCat(daemon.folder(), "/ipc/x");
              if (IsRoot() && ::open(own.c_str(), O_CREAT | O_WRONLY, 0600) >= 0) return 6;
              return 0;
            }),
            0);
  // Owner and importer continue, and the daemon's bytes are unchanged.
  for (Actor* const actor : {&both.owner, &both.importer}) EXPECT_TRUE(Ok(actor->Ask("check i 7")));
  EXPECT_TRUE(daemon.AccountsReturnTo(before));
  for (const auto& file : std::filesystem::directory_iterator(absl::StrCat(daemon.folder(), "/ipc"))) {
    EXPECT_TRUE(file.is_socket()) << file.path() << " uses memory of the run folder";
  }
}

TEST(ContextsTest, HandleExpiresWithItsContextWorker) {
  TestDaemon daemon;
  RawClient client = RawClient::Open(daemon.folder());
  const IpcHandle old = ToHandle(AllocateByHandle(client).ipc_handle());
  const UniqueFd held = Must(OpenNamedMemory(daemon.folder(), old));
  KillContext(daemon);
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(daemon.folder(), old).status()));
  EXPECT_TRUE(Eventually([&] { return ContextState(daemon) == v1::Device::IDLE; }));
  const IpcHandle next = ToHandle(AllocateByHandle(client).ipc_handle());
  EXPECT_TRUE(OpenNamedMemory(daemon.folder(), next).ok());
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(daemon.folder(), old).status())) << "the next worker has it not";
  EXPECT_EQ(::pwrite(held.get(), "x", 1, 0), 1) << "what is open lives on, as on a GPU";
}

TEST(ContextsTest, InvalidExportKindIsRejected) {
  TestDaemon daemon;
  RawClient client = RawClient::Open(daemon.folder());
  for (const int kind : {0, 3, -1}) {
    v1::AllocateBlockRequest request;
    *request.mutable_request() = client.NextTag();
    request.set_bytes(1);
    request.add_export_kinds(static_cast<v1::ExportKind>(kind));
    EXPECT_TRUE(Refused(client.Call(&v1::MemoryService::Stub::AllocateBlock, request), Reason::kInvalidField,
                        {{"field", "export_kinds"}}));
  }
}

}  // namespace
}  // namespace berth::testing
