// Folders with any bytes in their path: the daemon's sockets, state and configuration, for the SDK and the command. A
// client that cannot connect reports it.

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>
#include <berth/gang.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/client_folder.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

class Node : public ::testing::Test {
 protected:
  Node() {
    if (::mkdtemp(parent_.data()) == nullptr) Fatal(absl::InternalError("mkdtemp"), parent_);
    // A broker reads only what every user may. Clients make files in it, and cannot rename the daemon's folder.
    fs::permissions(parent_, fs::perms(01777));
  }
  // A broker whose supervisor is killed would go on.
  void TearDown() override {
    StopDaemon();
    fs::remove_all(parent_);
  }
  void StopDaemon() {
    if (!daemon_.has_value() || daemon_->IsGone()) return;
    daemon_->Signal(SIGCONT);
    daemon_->Signal(SIGTERM);
    EXPECT_EQ(daemon_->Wait(), 0);
  }

  // Starts a daemon in `folder`, with its state and its configuration beside it.
  void StartDaemon(const std::string& folder) {
    folder_ = folder;
    const std::string beside = folder.substr(0, folder.rfind('/'));
    fs::create_directories(beside);
    std::ofstream(beside + "/berthd.toml") << "[pools.one]\ncap = 1\n";
    daemon_.emplace(Subprocess::Start(
        {.argv = {ProgramPath("daemon/berthd"), absl::StrCat("--folder=", folder),
                  absl::StrCat("--state=", beside, "/s"), absl::StrCat("--config=", beside, "/berthd.toml"),
                  "--backend=host", "--warm-blocks=0"},
         .environment = {"BERTH_SESSION", "BERTH_FOLDER", "BERTH_STATE"},
         .of_operator = true}));
    ASSERT_TRUE(Eventually([&] { return daemon_->IsGone() || fs::exists(folder + "/admin-attach.sock"); }));
    ASSERT_FALSE(daemon_->IsGone());
    OpenToClients(folder);
  }
  pid_t Broker() const {
    for (const ChildInfo& child : ChildrenOf(daemon_->pid())) {
      if (child.name == "berth-broker") return child.pid;
    }
    return 0;
  }
  // Returns the command's exit code, and what it printed to either output.
  static std::pair<int, std::string> Run(const std::string& folder, const std::vector<std::string>& words) {
    Subprocess command = BerthCommand(folder).Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    std::string text = command.ReadAll();
    return {command.Wait(), std::move(text)};
  }

  std::string parent_ = "/tmp/berth-any-XXXXXX";
  std::string folder_;
  std::optional<Subprocess> daemon_;
};

struct Name {
  const char* name;
  // Below the test's own folder.
  std::string path;
};

class AnyFolderTest : public Node, public ::testing::WithParamInterface<Name> {};

INSTANTIATE_TEST_SUITE_P(Names, AnyFolderTest,
                         ::testing::Values(Name{"Spaces", " a  b "}, Name{"Percent", "feature%2Ffix%"},
                                           Name{"Query", "a?b#c"}, Name{"Scheme", "unix:@a;b=c&d"},
                                           Name{"Comma", "a,b,"}, Name{"Quotes", "a'b\"c\\d$e`f"},
                                           Name{"LineEnds", "a\nb\r\tc"}, Name{"NoUtf8", "a\xff\xfe b"},
                                           Name{"Brackets", "[a]{b}"}, Name{"TwoSlashes", "a//b"},
                                           Name{"Utf8", "gpü-テスト"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(AnyFolderTest, IsServedAndReached) {
  // Two slashes at the start of a path mean the same as one.
  ASSERT_NO_FATAL_FAILURE(StartDaemon(absl::StrCat("/", parent_, "/", GetParam().path, "/run")));
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"run", "--pool", "one", "--", "true"}, {"run", "--gpus", "1", "--", "true"}, {"permits"}, {"config"}}) {
    const auto [code, text] = Run(folder_, words);
    EXPECT_EQ(code, 0) << words[0] << ": " << text;
    EXPECT_FALSE(absl::StrContains(text, "UTF-8")) << text;
  }
  {
    const auto session = Must(Session::Open({.folder = folder_, .always_new = true}));
    const Inspector inspector(session);
    const pid_t broker = Broker();
    EXPECT_TRUE(Ok(inspector.ListPools()));
    // The next broker is reached, also in a folder that was created again.
    // At once: the daemon creates single entries again while others are still deleted.
    fs::rename(folder_, folder_ + ".deleted");
    fs::remove_all(folder_ + ".deleted");
    ASSERT_TRUE(Eventually([&] { return fs::exists(folder_ + "/admin-attach.sock"); }));
    OpenToClients(folder_);
    ::kill(broker, SIGKILL);
    EXPECT_TRUE(Eventually([&] { return Broker() != 0 && Broker() != broker; }));
    EXPECT_TRUE(Ok(inspector.ListPools()));
  }
  // A mistake in the configuration is reported with its place.
  std::ofstream(folder_.substr(0, folder_.rfind('/')) + "/berthd.toml") << "mistake\n";
  const auto [mistaken, text] = Run(folder_, {"config", "reload"});
  EXPECT_EQ(mistaken, 1) << text;
  EXPECT_FALSE(absl::StrContains(text, "UTF-8")) << text;
}

class OddFolderTest : public Node {
 protected:
  // The user of a daemon of their own, where the test is root's.
  static constexpr uid_t kUser = 65533;

  // Starts one of the two programs as a user that has a runtime folder, in `parent_`.
  Subprocess StartOfUser(const std::string& program, const std::string& runtime, std::vector<std::string> words) const {
    // Every user may read the copy.
    const std::string copy = absl::StrCat(parent_, "/", program.substr(program.rfind('/') + 1));
    if (!fs::exists(copy)) fs::copy_file(fs::canonical(ProgramPath(program)), copy);
    std::vector<std::string> argv = {"/bin/sh", "-c", "cd \"$0\" && exec \"$@\" 2>&1", parent_};
    if (IsRoot()) {
      const std::string user = absl::StrCat(kUser);
      argv.insert(argv.end(), {"setpriv", "--reuid", user, "--regid", user, "--clear-groups"});
    }
    argv.push_back(copy);
    argv.insert(argv.end(), words.begin(), words.end());
    return Subprocess::Start({.argv = argv,
                              .environment = {"BERTH_SESSION", "BERTH_FOLDER", "BERTH_STATE",
                                              absl::StrCat("XDG_RUNTIME_DIR=", runtime)},
                              .of_operator = true});
  }
  std::string MakeRuntimeFolder(const std::string& name) const {
    std::string runtime = absl::StrCat(parent_, "/", name);
    fs::create_directories(runtime);
    fs::permissions(runtime, fs::perms(0700));
    if (IsRoot()) EXPECT_EQ(::chown(runtime.c_str(), kUser, kUser), 0);
    return runtime;
  }
};

TEST_F(OddFolderTest, EveryByteOfPathIsServedAndReached) {
  constexpr int kEach = 60;
  for (int first = 1; first < 256; first += kEach) {
    SCOPED_TRACE(first);
    std::string name = "b";
    for (int byte = first; byte < std::min(first + kEach, 256); ++byte) {
      if (byte != '/') name.push_back(static_cast<char>(byte));
    }
    ASSERT_NO_FATAL_FAILURE(StartDaemon(absl::StrCat(parent_, "/", name)));
    const auto [code, text] = Run(folder_, {"run", "--pool", "one", "--", "true"});
    EXPECT_EQ(code, 0) << text;
    EXPECT_TRUE(Ok(Session::Open({.folder = folder_, .always_new = true})));
    Subprocess named = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "--folder=" + folder_, "permits"},
                                          .environment = {"BERTH_SESSION", "BERTH_FOLDER"}});
    named.ReadAll();
    EXPECT_EQ(named.Wait(), 0);
    StopDaemon();
  }
}

TEST_F(OddFolderTest, LeadingDashIsServedAndReached) {
  for (const std::string& folder : {std::string("-d"), std::string("--pool")}) {
    SCOPED_TRACE(folder);
    const std::string runtime = MakeRuntimeFolder(folder);
    daemon_.emplace(StartOfUser("daemon/berthd", "", {absl::StrCat("--folder=", folder), "--backend=host"}));
    ASSERT_TRUE(Eventually([&] { return daemon_->IsGone() || fs::exists(runtime + "/admin-attach.sock"); }));
    ASSERT_FALSE(daemon_->IsGone()) << daemon_->ReadAll();
    Subprocess command = StartOfUser("client/cli/berth", "", {absl::StrCat("--folder=", folder), "permits"});
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), 0) << said;
    StopDaemon();
  }
}

TEST_F(OddFolderTest, OddRuntimeFolderIsServedAndReached) {
  if (fs::exists("/run/berth/berthd.sock")) GTEST_SKIP() << "this machine's own daemon comes first";
  for (const std::string& name : {std::string(" a  b"), std::string("feature%2Ffix%"), std::string("a?b#c"),
                                  std::string("a\nb"), std::string("n\xff\xfe"), std::string("-a")}) {
    SCOPED_TRACE(name);
    const std::string runtime = MakeRuntimeFolder(name);
    daemon_.emplace(StartOfUser("daemon/berthd", runtime, {"--backend=host"}));
    ASSERT_TRUE(Eventually([&] { return daemon_->IsGone() || fs::exists(runtime + "/berth/admin-attach.sock"); }));
    ASSERT_FALSE(daemon_->IsGone()) << daemon_->ReadAll();
    for (const char* const verb : {"permits", "health"}) {
      Subprocess command = StartOfUser("client/cli/berth", runtime, {verb});
      const std::string said = command.ReadAll();
      EXPECT_EQ(command.Wait(), 0) << verb << ": " << said;
    }
    StopDaemon();
  }
  const std::string too_long = MakeRuntimeFolder(std::string(150, 'x'));
  Subprocess daemon = StartOfUser("daemon/berthd", too_long, {"--backend=host"});
  std::string said = daemon.ReadAll();
  EXPECT_EQ(daemon.Wait(), 1) << said;
  EXPECT_TRUE(absl::StrContains(said, "expected an absolute path of at most 89")) << said;
  Subprocess command = StartOfUser("client/cli/berth", too_long, {"permits"});
  said = command.ReadAll();
  EXPECT_NE(command.Wait(), 0) << said;
  EXPECT_TRUE(absl::StrContains(said, "limit 107; name the folder by a shorter path")) << said;
}

class LongFolderTest : public Node {
 protected:
  std::string OfBytes(size_t bytes) const {
    std::string folder = parent_ + "/";
    folder.append(bytes - folder.size() - 2, 'x');
    return folder + "/r";
  }
};

TEST_F(LongFolderTest, LongestFolderIsServedAndReached) {
  ASSERT_NO_FATAL_FAILURE(StartDaemon(OfBytes(89)));
  EXPECT_EQ(Run(folder_, {"permits"}).first, 0);
  EXPECT_EQ(Run(folder_, {"run", "--pool", "one", "--", "true"}).first, 0);
  const auto operators = Session::Open({.folder = folder_, .admin = true, .always_new = true});
  EXPECT_TRUE(Ok(operators));
}

TEST_F(LongFolderTest, LongerFolderIsRefusedByBothPrograms) {
  const std::string folder = OfBytes(120);
  fs::create_directories(folder);
  Subprocess daemon = Subprocess::Start(
      {.argv = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh", ProgramPath("daemon/berthd"),
                absl::StrCat("--folder=", folder), "--backend=host"},
       .environment = {"BERTH_SESSION", "BERTH_FOLDER", "BERTH_STATE"},
       .of_operator = true});
  const std::string said = daemon.ReadAll();
  EXPECT_EQ(daemon.Wait(), 1) << said;
  EXPECT_TRUE(absl::StrContains(said, "120 bytes; expected an absolute path of at most 89")) << said;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"permits"}, {"run", "--pool", "one", "--", "true"}}) {
    const auto [code, text] = Run(folder, words);
    EXPECT_NE(code, 0) << words[0];
    EXPECT_TRUE(absl::StrContains(text, "limit 107; name the folder by a shorter path")) << text;
  }
  const std::string zero("/tmp/a\0b", 8);
  EXPECT_TRUE(Refused(Session::Open({.folder = zero, .always_new = true}), Reason::kInvalidField));
}

class NoConnectionTest : public Node {
 protected:
  static constexpr absl::Duration kTimeout = absl::Milliseconds(200);

  // Replaces the socket by one on which no process listens.
  static void Deafen(const std::string& path) {
    ::unlink(path.c_str());
    const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0) << strerror(errno);
    fs::permissions(path, fs::perms::all);
  }
};

TEST_F(NoConnectionTest, WatchOfDeafSocketEndsInTime) {
  const std::string socket = parent_ + "/observer.sock";
  ASSERT_NO_FATAL_FAILURE(Deafen(socket));
  const auto session = Must(Session::Open({.folder = parent_, .observer = true, .timeout = kTimeout}));
  const absl::Status watched = Inspector(session).WatchDevices([](const v1::WatchDevicesResponse&) { return true; });
  EXPECT_TRUE(absl::IsDeadlineExceeded(watched)) << watched;
  EXPECT_TRUE(absl::StrContains(watched.message(), socket)) << watched;
}

TEST_F(NoConnectionTest, WaitWithoutSocketEndsInTime) {
  ASSERT_NO_FATAL_FAILURE(StartDaemon(parent_ + "/run"));
  const std::string socket = folder_ + "/berthd.sock";
  const auto session = Must(Session::Open({.folder = folder_, .always_new = true, .timeout = kTimeout}));
  // The supervisor would create the socket again.
  daemon_->Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(daemon_->pid()) == 'T'; }));
  fs::remove(socket);
  const absl::Status waited = Gang::Acquire(session, {.members = {{.pool = "one"}}}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(waited)) << waited;
  EXPECT_TRUE(absl::StrContains(waited.message(), absl::StrCat(socket, ": No such file"))) << waited;
  daemon_->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return Gang::Acquire(session, {.members = {{.pool = "one"}}}).ok(); }));
}

}  // namespace
}  // namespace berth::testing
