// Every option, argument and flag of the help texts, with values that it does not take. The command refuses them before
// it does anything else, and names the option, the reason and the way out.

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Words = std::vector<std::string>;

constexpr int kUsage = 64;
// Commands that run at once: enough to keep every processor busy.
constexpr size_t kAtOnce = 16;

// Names, paths and free texts: any printable text may be meant.
const std::set<std::string> kTexts = {"--folder", "--pool",        "--device", "--devices", "--island-of",
                                      "--label",  "--reason",      "--output", "--status-file",
                                      "NAME",     "FILE",          "POOL",     "DEVICE",    "label"};
// An empty one is as good as none.
const std::set<std::string> kMayBeEmpty = {"--label", "--reason"};

// An option, argument or flag of a command.
struct Place {
  Words command;
  std::string name;
  bool takes_value = false;
  // The number of arguments before it.
  size_t arguments = 0;

  bool is_argument() const { return !absl::StartsWith(name, "-"); }
  bool runs() const { return !command.empty() && absl::EndsWith(command[0], "run"); }
};

Subprocess Start(const Words& words) {
  Words argv = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh", ProgramPath("client/cli/berth")};
  argv.insert(argv.end(), words.begin(), words.end());
  // A command line that is accepted reaches no daemon, which has another exit code.
  return Subprocess::Start(
      {.argv = argv, .environment = {"BERTH_FOLDER=/nowhere", "BERTH_SESSION", "CTEST_RESOURCE_GROUP_COUNT"}});
}

// A command of the help texts.
struct NamedCommand {
  Words words;
  size_t arguments = 0;
  bool has_subcommands = false;

  bool runs() const { return !words.empty() && absl::EndsWith(words[0], "run"); }
};

// Adds `command` with its places, and its subcommands.
void AddPlaces(const Words& command, std::vector<Place>* places, std::vector<NamedCommand>* commands) {
  Words asks = command;
  asks.push_back("--help");
  std::string section;
  size_t arguments = 0;
  bool has_subcommands = false;
  for (const absl::string_view line : absl::StrSplit(Start(asks).ReadAll(), '\n')) {
    if (!absl::StartsWith(line, " ")) section = std::string(line);
    // Further lines of a description are indented by more.
    if (!absl::StartsWith(line, "  ") || absl::StartsWith(line, "   ")) continue;
    const Words fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const std::string name = Words(absl::StrSplit(fields[0], ',')).back();
    if (section == "Subcommands:") {
      Words deeper = command;
      deeper.push_back(name);
      has_subcommands = true;
      AddPlaces(deeper, places, commands);
    } else if (section == "Positionals:") {
      places->push_back({.command = command, .name = name, .takes_value = true, .arguments = arguments++});
    } else if (section == "Options:" && name != "--help" && name != "--version") {
      const std::string type = fields.size() > 1 ? fields[1] : "";
      const bool takes = absl::StartsWith(type, "TEXT") || type == "INT" || type == "UINT";
      // "--a{false}" is a flag with a fixed value.
      places->push_back({.command = command, .name = name.substr(0, name.find('{')), .takes_value = takes});
    }
  }
  commands->push_back({.words = command, .arguments = arguments, .has_subcommands = has_subcommands});
}

struct HelpTexts {
  std::vector<Place> places;
  std::vector<NamedCommand> commands;
};

const HelpTexts& Help() {
  static const HelpTexts* const help = [] {
    auto* const found = new HelpTexts;
    AddPlaces({}, &found->places, &found->commands);
    return found;
  }();
  return *help;
}
const std::vector<Place>& Places() { return Help().places; }

// Returns the command line that gives the place this value; `joined`: as "--name=value".
Words WithValue(const Place& place, const std::string& value, bool joined) {
  Words words = place.command;
  words.insert(words.end(), place.arguments, "some");
  if (place.is_argument()) {
    words.push_back(value);
  } else if (joined) {
    words.push_back(absl::StrCat(place.name, "=", value));
  } else {
    words.insert(words.end(), {place.name, value});
  }
  if (place.command.empty()) words.push_back("status");
  if (place.runs()) words.insert(words.end(), {"--", "/bin/true"});
  return words;
}

void ExpectRefusals(const std::vector<std::pair<Place, Words>>& lines, const std::string& says) {
  ASSERT_FALSE(lines.empty());
  for (size_t first = 0; first < lines.size(); first += kAtOnce) {
    const size_t end = std::min(first + kAtOnce, lines.size());
    std::vector<Subprocess> commands;
    for (size_t i = first; i < end; ++i) commands.push_back(Start(lines[i].second));
    for (size_t i = first; i < end; ++i) {
      SCOPED_TRACE(absl::StrJoin(lines[i].second, "|"));
      const std::string said = commands[i - first].ReadAll();
      EXPECT_EQ(commands[i - first].Wait(), kUsage) << said;
      EXPECT_TRUE(absl::StrContains(said, absl::StrCat(lines[i].first.name, ": "))) << said;
      EXPECT_TRUE(absl::StrContains(said, says)) << said;
    }
  }
}

struct Case {
  const char* name;
  const char* value;
  bool joined;
  // Part of the refusal.
  const char* says;
};

class ValuesTest : public ::testing::TestWithParam<Case> {};

TEST_P(ValuesTest, EveryOptionRefusesIt) {
  const bool blank = absl::StartsWith(GetParam().says, "the value is ");
  std::vector<std::pair<Place, Words>> lines;
  for (const Place& place : Places()) {
    if (!place.takes_value || (blank ? kMayBeEmpty : kTexts).count(place.name) > 0) continue;
    if (place.is_argument() && GetParam().joined) continue;
    lines.emplace_back(place, WithValue(place, GetParam().value, GetParam().joined));
  }
  ExpectRefusals(lines, GetParam().says);
}

INSTANTIATE_TEST_SUITE_P(Values, ValuesTest,
                         ::testing::Values(Case{"Empty", "", false, "the value is empty: name a value, or leave"},
                                           Case{"EmptyJoined", "", true, "the value is empty: name a value, or leave"},
                                           Case{"Blank", " ", false, "the value is blank: name a value, or leave"},
                                           Case{"BlankJoined", "\t ", true, "the value is blank: name a value"},
                                           Case{"Nonsense", "soon?", false, "soon?"}),
                         [](const auto& info) { return info.param.name; });

TEST(NumbersTest, RefusalNamesTheOptionsOwnRange) {
  const std::vector<std::pair<Words, std::string>> rows = {
      {{"run", "--gpus", "-1", "true"}, "--gpus: \"-1\" is not a whole number from 1 to 64"},
      {{"run", "--gpus", "65", "true"}, "--gpus: \"65\" is not a whole number from 1 to 64"},
      {{"run", "--permits", "-1", "true"}, "--permits: \"-1\" is not a whole number from 1"},
      {{"acquire", "--owner", "-1"}, "--owner: \"-1\" is not a whole number from 1 to 2147483647"},
      {{"acquire", "--owner", "2147483648"}, "--owner: \"2147483648\" is not a whole number from 1 to 2147483647"},
      {{"permits", "set", "p", "4", "--tenant-cap", "-1"},
       "--tenant-cap: \"-1\" is not a whole number from 0"}};
  for (const auto& [words, says] : rows) {
    Subprocess berth = Start(words);
    const std::string said = berth.ReadAll();
    EXPECT_EQ(berth.Wait(), kUsage) << said;
    EXPECT_TRUE(absl::StrContains(said, says)) << said;
  }
}

TEST(ListsTest, EmptyNameIsRefused) {
  for (const char* const list : {"0,,1", ",0", "0,", ","}) {
    Subprocess berth = Start({"run", "--devices", list, "true"});
    const std::string said = berth.ReadAll();
    EXPECT_EQ(berth.Wait(), kUsage) << said;
    EXPECT_TRUE(absl::StrContains(said, absl::StrCat("--devices: \"", list, "\" has an empty name"))) << said;
  }
}

class FlagsTest : public ::testing::TestWithParam<Case> {};

TEST_P(FlagsTest, EveryFlagRefusesIt) {
  std::vector<std::pair<Place, Words>> lines;
  for (const Place& place : Places()) {
    if (!place.takes_value) lines.emplace_back(place, WithValue(place, GetParam().value, /*joined=*/true));
  }
  ExpectRefusals(lines, GetParam().says);
}

INSTANTIATE_TEST_SUITE_P(Values, FlagsTest,
                         ::testing::Values(Case{"Empty", "", true, "the value is empty: it is a flag"},
                                           Case{"Nonsense", "maybe", true, "\"maybe\" is not a value: it is a flag"},
                                           Case{"Blank", " ", true, "\" \" is not a value: it is a flag"}),
                         [](const auto& info) { return info.param.name; });

// Words after "--" are arguments: no option of a command or of `berth`, and no subcommand.
TEST(EndOfOptionsTest, NoCommandReadsLaterWordsAsOptions) {
  std::vector<std::pair<Words, std::string>> lines;
  for (const Words& later : std::vector<Words>{{"--json"}, {"--folder", "/elsewhere"}, {"set", "1", "1"}}) {
    for (const NamedCommand& command : Help().commands) {
      if (command.runs() || command.words.empty()) continue;
      Words& words = lines.emplace_back(command.words, later.front()).first;
      // All arguments that the command takes.
      words.insert(words.end(), command.arguments, "1");
      if (words[0] == "acquire") words.push_back("--shell");
      words.push_back("--");
      words.insert(words.end(), later.begin(), later.end());
    }
  }
  size_t refused = 0;
  for (size_t first = 0; first < lines.size(); first += kAtOnce) {
    const size_t end = std::min(first + kAtOnce, lines.size());
    std::vector<Subprocess> commands;
    for (size_t i = first; i < end; ++i) commands.push_back(Start(lines[i].first));
    for (size_t i = first; i < end; ++i) {
      SCOPED_TRACE(absl::StrJoin(lines[i].first, "|"));
      const std::string said = commands[i - first].ReadAll();
      EXPECT_EQ(commands[i - first].Wait(), kUsage) << said;
      const bool named = absl::StrContains(said, lines[i].second);
      // `berth device` first reports that it needs a subcommand.
      EXPECT_TRUE(named || absl::StrContains(said, "subcommand is required")) << said;
      refused += named ? 1 : 0;
    }
  }
  EXPECT_GT(refused, 100u);
}

// Values of the right form outside the option's range.
TEST(RangesTest, CommandRefusesValueOutsideRange) {
  const struct {
    Words words;
    const char* says;
  } kCases[] = {
      {{"permits", "set", "p", "--hold-limit", "0.5s"}, "--hold-limit: \"0.5s\" is not a time of at least 1s"},
      {{"permits", "set", "p", "--hold-warning", "0"}, "--hold-warning: \"0\" is not a time of at least 1s, or never"},
      {{"permits", "set", "p", "--idle-warning", "1ms"}, "--idle-warning: \"1ms\" is not a time of at least 1s"},
      // A pool without ageing would serve every request as one of the highest priority.
      {{"permits", "set", "p", "--ageing", "never"}, "--ageing: \"never\" is not a time such as 90, 90s"},
      {{"permits", "set", "p", "--weight", "0=0"}, "--weight: \"0=0\": 0 is not a weight from 1 to 1000"},
      {{"permits", "set", "p", "--weight", "0=1001"}, "--weight: \"0=1001\": 1001 is not a weight from 1 to 1000"},
      {{"blocks", "publish", "n", "f", "--grant", "no one"}, "--grant: \"no one\" is not a user or group on this"},
      {{"blocks", "publish", "n", "f", "--grant", "group:no one"}, "--grant: \"group:no one\" is not a group"},
      {{"history", "--since", "2h", "--until", "3h"}, "--since 2h is later than --until 3h"},
      {{"history", "--since", "@2", "--until", "@1"}, "--since @2 is later than --until @1"},
  };
  for (const auto& [words, says] : kCases) {
    SCOPED_TRACE(absl::StrJoin(words, " "));
    Subprocess command = Start(words);
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), kUsage) << said;
    EXPECT_TRUE(absl::StrContains(said, says)) << said;
  }
}

TEST(RangesTest, CommandTakesValuesAtBothEnds) {
  for (const Words& words : std::vector<Words>{{"permits", "set", "p", "--hold-limit", "1s", "--weight", "0=1"},
                                               {"permits", "set", "p", "--hold-limit", "never", "--weight", "0=1000"},
                                               {"history", "--since", "@1", "--until", "@1"},
                                               {"history", "--since", "2h", "--until", "2h"}}) {
    Subprocess command = Start(words);
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), 69) << absl::StrJoin(words, " ") << ": " << said;
  }
}

// The words of a program are its own.
TEST(EndOfOptionsTest, RunPassesLaterWordsOn) {
  for (const char* const verb : {"run", "ctest-run"}) {
    for (const char* const later : {"--json", "--help", "--", "status"}) {
      Subprocess command = Start({verb, "--no-wait", "--", later});
      const std::string said = command.ReadAll();
      EXPECT_EQ(command.Wait(), 69) << verb << " " << later << ": " << said;
    }
  }
}

TEST(EndOfOptionsTest, OptionNeedsItsValueBefore) {
  for (const Words& words : std::vector<Words>{{"plans", "--folder", "--", "5"},
                                               {"device", "drain", "0", "--reason", "--", "why"},
                                               {"run", "--label", "--", "true"},
                                               {"blocks", "publish", "n", "--grant", "--", "f"}}) {
    Subprocess command = Start(words);
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), kUsage) << absl::StrJoin(words, " ") << ": " << said;
    EXPECT_TRUE(absl::StrContains(said, words[words.size() - 3])) << said;
  }
}

TEST(PlacesTest, HelpTextsListEveryKindOfPlace) {
  // As many as the help texts have at least.
  EXPECT_GT(Places().size(), 80u);
  std::set<std::string> names;
  for (const Place& place : Places()) names.insert(absl::StrCat(absl::StrJoin(place.command, " "), " ", place.name));
  for (const char* const name : {" --json", "run --mem", "history --since", "permits set CAP", "budget set LIMIT"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
}

}  // namespace
}  // namespace berth::testing
