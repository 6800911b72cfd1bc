// Labels: text that is only displayed. The daemon cleans and truncates it, whoever sends it, and fails no request for
// it. Nothing in the command's output moves, hides or reorders the text on a terminal.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <berth/block.h>
#include <berth/gang.h>
#include <berth/permit.h>
#include <berth/plan.h>
#include <berth/reservation.h>
#include <berth/session.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/plan.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/label.h"
#include "common/terminal_text.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

// Text that no list can print unchanged.
const std::vector<std::string>& OddTexts() {
  static const auto* const texts = new std::vector<std::string>{
      std::string(129, 'x'),  std::string(5000, 'y'),  "\x1b[2Jgone",    "two\nlines\r",
      "abc\u202egnp.exe",     "zero\u200bwidth",       "bytes\xff\xfe",  std::string(127, 'z') + "\u00e4",
      "\u2028line separator", "\xc2\x9b" "31mC1 code", "tab\there\x07",  std::string("nul\0byte", 8)};
  return *texts;
}

class LabelsTest : public ::testing::Test {
 protected:
  TestDaemon daemon_{{.flags = {"--pool=wide=8"}}};
};

TEST_F(LabelsTest, OddLabelIsAcceptedAndShownCleaned) {
  for (const std::string& text : OddTexts()) {
    const std::string shown = ToLabel(text);
    ASSERT_TRUE(ValidateLabel("label", shown).ok());
    const auto session = Must(Session::Open({.folder = daemon_.folder(), .label = text, .always_new = true}));
    const Permit permit = Must(Permit::Acquire(session, {.pool = "wide", .label = text}));
    const GangOptions together = {.members = {{.pool = "wide"}, {.pool = "wide"}}, .label = text, .holder_key = "gang"};
    const Gang gang = Must(Gang::Acquire(session, together));
    const Block block = Must(Block::Allocate(session, {.bytes = Bytes(4096), .label = text}));
    const Reservation reservation =
        Must(Reservation::Make(session, {.items = {{.bytes = Bytes(4096)}}, .label = text}));
    const Plan plan = Must(Plan::Make(session, {.units = 4, .label = text}));
    const Inspector inspector = daemon_.inspector();
    int labels = 0;
    const auto expect = [&](const auto& list, const char* what) {
      for (const auto& each : list) {
        if (each.label() == shown) ++labels;
        EXPECT_TRUE(ValidateLabel("label", each.label()).ok()) << what;
      }
    };
    expect(Must(inspector.ListSessions()).sessions(), "session");
    EXPECT_EQ(labels, 1) << ToTerminal(text);
    expect(Must(inspector.ListPermits()).permits(), "permit");
    EXPECT_EQ(labels, 4) << ToTerminal(text);
    expect(Must(inspector.ListBlocks()).blocks(), "block");
    expect(Must(inspector.ListReservations()).reservations(), "reservation");
    expect(Must(inspector.ListPlans()).plans(), "plan");
    EXPECT_EQ(labels, 7) << ToTerminal(text);
    EXPECT_EQ(Must(inspector.DrainDevice(0, text)).drain_reason(), shown);
    Must(inspector.UndrainDevice(0), "undrain");
  }
  daemon_.ExpectAccountsBack();
}

TEST_F(LabelsTest, CommandAcceptsAnyLabelAndEscapesIt) {
  const BerthCommand berth(daemon_.folder());
  for (const std::string& text : OddTexts()) {
    // An argument has no zero byte.
    const std::string label = text.substr(0, text.find('\0'));
    const std::string look = absl::StrCat(ProgramPath("client/cli/berth"), " permits");
    const std::string permits =
        berth.Show({"run", "--pool", "wide", "--label", label, "--", "/bin/sh", "-c", look});
    EXPECT_TRUE(absl::StrContains(permits, ToLabel(label))) << permits;
    EXPECT_EQ(ToTerminal(permits), permits);
  }
  daemon_.ExpectAccountsBack();
}

// A process chooses its name: this one does, with permits, blocks and a waiter, and its `berth run` beside it.
TEST_F(LabelsTest, ProcessNamesAreShownEscaped) {
  if (OtherUser().has_value()) GTEST_SKIP() << "this process is a client itself, as the daemon's user";
  char original[16] = {};
  ::prctl(PR_GET_NAME, original);
  const BerthCommand berth(daemon_.folder());
  const std::vector<std::string> names = {"\x1b[2Jgone", "two\nlines\r", "\xff\xfe", "\xc2\x9b" "31mC1",
                                          "abc\u202egnp", "\xe2\x80\x8b\x07", "12345678901234\u00e4"};
  for (const std::string& name : names) {
    SCOPED_TRACE(ToTerminal(name));
    ::prctl(PR_SET_NAME, name.c_str());
    const auto session = Must(Session::Open({.folder = daemon_.folder(), .label = "named", .always_new = true}));
    const Permit permit = Must(Permit::Acquire(session, {.pool = "wide", .units = 8}));
    const Block block = Must(Block::Allocate(session, {.bytes = Bytes(4096)}));
    ::prctl(PR_SET_NAME, original);
    // The kernel cuts a name, even inside a character.
    std::string shown = absl::CHexEscape(name.substr(0, sizeof(original) - 1));
    absl::StrAppend(&shown, "(", ::getpid(), ")");
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"permits"}, {"sessions"}, {"blocks"}, {"log"}, {"--json", "permits"}, {"--json", "sessions"}}) {
      const std::string said = berth.Show(words);
      EXPECT_EQ(ToTerminal(said), said) << words[0];
      if (words.size() == 1 && words[0] != "log") {
        EXPECT_TRUE(absl::StrContains(said, shown)) << words[0] << ToTerminal(said);
      }
    }
    if (&name != &names.front()) continue;
    // The notice of a wait, which names the holder, and then `explain`.
    Subprocess waiting = berth.Start({"run", "--pool", "wide", "--", "/bin/true"},
                                     {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    const std::string notice = Must(waiting.ReadLine());
    EXPECT_TRUE(absl::StrContains(notice, absl::StrCat("held by ", shown))) << ToTerminal(notice);
    EXPECT_EQ(ToTerminal(notice), notice);
    const std::string explained =
        berth.Show({"explain", notice.substr(notice.rfind(' ') + 1)});
    EXPECT_EQ(ToTerminal(explained), explained);
    waiting.Signal(SIGTERM);
    waiting.Wait();
  }
  daemon_.ExpectAccountsBack();
}

TEST_F(LabelsTest, ErrorsEscapeLabels) {
  constexpr char kOdd[] = "\x1b[2J\xe2\x80\xaegone\xff";
  const struct {
    std::vector<std::string> words;
    int code;
  } rows[] = {
      {{kOdd}, 64},
      {{"status", kOdd}, 64},
      {{"status", absl::StrCat("--", kOdd)}, 64},
      {{"permits", "--pool", kOdd}, 1},
      {{"permits", "set", kOdd, "3"}, 1},
      {{"permits", "set", "gpu-tests", kOdd}, 64},
      {{"permits", "revoke", kOdd}, 64},
      {{"explain", kOdd}, 64},
      {{"device", "drain", kOdd}, 1},
      {{"budget", "set", kOdd}, 64},
      {{"history", "--since", kOdd}, 64},
      {{"history", "--kind", kOdd}, 64},
      {{"blocks", "publish", "name", absl::StrCat("/nowhere/", kOdd)}, 1},
      {{"blocks", "unpublish", kOdd}, 1},
      {{"ctest-spec", "--output", absl::StrCat("/nowhere/", kOdd)}, 1},
      {{"run", "--pool", kOdd, "--", "/bin/true"}, 125},
      {{"run", "--timeout", kOdd, "--", "/bin/true"}, 64},
      {{"run", "--device", kOdd, "--", "/bin/true"}, 125},
      {{"run", "--devices", kOdd, "--", "/bin/true"}, 125},
      {{"run", "--island-of", kOdd, "--gpus", "2", "--", "/bin/true"}, 125},
      {{"run", "--status-file", absl::StrCat("/nowhere/", kOdd), "--", "/bin/true"}, 125},
      {{"run", "--", absl::StrCat("/nowhere/", kOdd)}, 127},
      {{"--folder", absl::StrCat("/nowhere/", kOdd), "status"}, 69},
  };
  for (const auto& row : rows) {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh", ProgramPath("client/cli/berth")};
    argv.insert(argv.end(), row.words.begin(), row.words.end());
    Subprocess command = Subprocess::Start(
        {.argv = argv, .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
    const std::string said = command.ReadAll();
    const std::string where = ToTerminal(absl::StrCat(row.words[0], " ", row.words.back(), ": ", said));
    EXPECT_EQ(command.Wait(), row.code) << where;
    EXPECT_EQ(ToTerminal(said), said) << where;
    EXPECT_TRUE(absl::StartsWith(said, "berth: ")) << where;
  }
  daemon_.ExpectAccountsBack();
}

TEST_F(LabelsTest, FilesAreNotWrittenThroughLinks) {
  const BerthCommand berth(daemon_.folder());
  const fs::path folder = fs::path(daemon_.folder()).parent_path() / "files";
  fs::create_directory(folder);
  GiveToClients(folder);
  const std::string place = folder / "place", precious = folder / "precious";
  const struct {
    const char* name;
    std::vector<std::string> words;
    int refused;
  } rows[] = {
      {"ctest-spec", {"ctest-spec", "--output", place}, 1},
      {"status-file", {"run", "--status-file", place, "--", "/bin/true"}, 125},
  };
  const struct {
    const char* name;
    bool taken;
    void (*make)(const fs::path& place, const fs::path& precious);
  } places[] = {
      {"none", true, [](const fs::path&, const fs::path&) {}},
      {"file", true, [](const fs::path& place, const fs::path&) { std::ofstream(place) << "old"; }},
      {"link", false, [](const fs::path& place, const fs::path& precious) { fs::create_symlink(precious, place); }},
      {"fifo", false, [](const fs::path& place, const fs::path&) { ASSERT_EQ(::mkfifo(place.c_str(), 0666), 0); }},
  };
  for (const auto& row : rows) {
    for (const auto& at : places) {
      std::ofstream(precious) << "precious";
      at.make(place, precious);
      GiveToClients(folder);
      EXPECT_EQ(berth.Run(row.words), at.taken ? 0 : row.refused) << row.name << " on " << at.name;
      std::ifstream file(precious);
      EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "precious") << row.name << " on " << at.name;
      EXPECT_EQ(fs::is_regular_file(fs::symlink_status(place)), at.taken) << row.name << " on " << at.name;
      if (at.taken) {
        EXPECT_GT(fs::file_size(place), 3u) << row.name << " on " << at.name;
      }
      fs::remove(place);
      fs::remove(precious);
      EXPECT_TRUE(fs::is_empty(folder)) << row.name << " on " << at.name;
    }
  }
  fs::remove_all(folder);
  daemon_.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
