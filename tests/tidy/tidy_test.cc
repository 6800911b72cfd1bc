// Checks the rules that keep the tree readable: layers and includes, words and sentences, and the length of files,
// lines and test names. Nothing unused or unfinished remains.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/tidy/heavy_includes.h"
#include "tests/tidy/retired_terms.h"
#include "tests/tidy/sentences.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

// A layer by the prefix of its files' paths, and the path prefixes from which it may include. The longest match counts.
const std::map<std::string, std::vector<std::string>>& Layers() {
  static const auto* const kLayers = new std::map<std::string, std::vector<std::string>>{
      {"common/", {"common/"}},
      {"daemon/base/", {"common/", "daemon/base/"}},
      {"daemon/core/", {"common/", "daemon/base/", "daemon/core/"}},
      {"daemon/device/", {"common/", "daemon/base/", "daemon/device/"}},
      {"daemon/supervisor/",
       {"common/", "daemon/base/", "daemon/supervisor/", "daemon/device/monitor/device_record.h",
        "daemon/device/monitor/monitor_wire.h", "daemon/device/worker/worker_exit.h",
        "daemon/ledger/ledger_file.h"}},
      {"daemon/broker/",
       {"common/", "daemon/base/", "daemon/core/", "daemon/device/", "daemon/ledger/", "daemon/supervisor/",
        "daemon/broker/"}},
      {"daemon/service/",
       {"common/", "daemon/base/", "daemon/core/", "daemon/supervisor/", "daemon/broker/", "daemon/service/",
        "berth/v1/", "google/rpc/"}},
      {"daemon/", {"common/", "daemon/", "berth/v1/"}},
      {"client/cli/", {"common/", "client/", "berth/v1/", "google/rpc/"}},
      {"client/", {"common/", "client/", "berth/v1/", "google/rpc/"}},
      {"deploy/", {"common/", "client/"}},
      {"docs/", {"common/", "client/"}},
      {"tests/", {""}},
  };
  return *kLayers;
}

struct Source {
  std::string path;
  std::vector<std::string> lines;
};

std::string g_workspace_file;

// Returns every source file of the tree, with its path from the root.
const std::vector<Source>& Sources() {
  static const auto* const kSources = [] {
    auto* const sources = new std::vector<Source>;
    const fs::path root = fs::canonical(g_workspace_file).parent_path();
    const auto read = [&](const fs::directory_entry& entry) {
      if (!entry.is_regular_file() || entry.path().filename() == ".git") return;
      std::ifstream stream(entry.path());
      std::stringstream text;
      text << stream.rdbuf();
      sources->push_back({fs::relative(entry.path(), root).string(), absl::StrSplit(text.str(), '\n')});
    };
    for (const auto& entry : fs::directory_iterator(root)) read(entry);
    for (const char* const top :
         {".ci", "common", "proto", "daemon", "client", "tests", "deploy", "docs", "third_party"}) {
      if (!fs::exists(root / top)) continue;
      for (const auto& entry : fs::recursive_directory_iterator(root / top)) read(entry);
    }
    return sources;
  }();
  return *kSources;
}

bool IsCpp(const std::string& path) { return absl::EndsWith(path, ".h") || absl::EndsWith(path, ".cc"); }
bool IsTest(const std::string& path) {
  return absl::EndsWith(path, "_test.cc") || absl::EndsWith(path, "_test_main.cc") ||
         absl::StartsWith(path, "tests/");
}

// Returns the name in an include line; empty for other lines. A public header, <berth/...>, has its path from the root.
std::string IncludeOf(const std::string& line) {
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "#include ") || rest.size() < 3) return "";
  const char end = rest[0] == '<' ? '>' : '"';
  rest.remove_prefix(1);
  const std::string name(rest.substr(0, rest.find(end)));
  if (end == '"' || !absl::StartsWith(name, "berth/")) return name;
  for (const char* const include : {"common/include/", "client/include/"}) {
    if (fs::exists(fs::canonical(g_workspace_file).parent_path() / include / name)) return include + name;
  }
  ADD_FAILURE() << "no public header " << name;
  return name;
}

// Whether `line` contains `word` as a whole word.
bool HasWord(absl::string_view line, absl::string_view word) {
  for (size_t at = line.find(word); at != absl::string_view::npos; at = line.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !absl::ascii_isalnum(line[at - 1])) &&
        (end == line.size() || !absl::ascii_isalnum(line[end]))) {
      return true;
    }
  }
  return false;
}

template <typename Check>
void ForEachLine(Check check) {
  for (const Source& source : Sources()) {
    for (size_t i = 0; i < source.lines.size(); ++i) check(source, i + 1, source.lines[i]);
  }
}

TEST(TidyTest, TreeIsFound) { EXPECT_GT(Sources().size(), 50u); }

// The rules about includes read this form only.
TEST(TidyTest, IncludesHaveOneForm) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    absl::string_view rest = absl::StripAsciiWhitespace(line);
    if (!IsCpp(source.path) || !absl::ConsumePrefix(&rest, "#")) return;
    if (!absl::StartsWith(absl::StripAsciiWhitespace(rest), "include")) return;
    EXPECT_FALSE(IncludeOf(line).empty()) << source.path << ":" << number << " needs the form #include \"...\"";
  });
}

TEST(TidyTest, DependenciesPointDownOnly) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    const std::string include = IncludeOf(line);
    const bool ours = absl::StartsWith(include, "common/") || absl::StartsWith(include, "daemon/") ||
                      absl::StartsWith(include, "client/") || absl::StartsWith(include, "tests/") ||
                      absl::StartsWith(include, "berth/v1/");
    if (!ours || IsTest(source.path)) return;
    const std::vector<std::string>* allowed = nullptr;
    size_t longest = 0;
    for (const auto& [prefix, from] : Layers()) {
      if (absl::StartsWith(source.path, prefix) && prefix.size() > longest) {
        longest = prefix.size();
        allowed = &from;
      }
    }
    ASSERT_NE(allowed, nullptr) << source.path;
    bool fits = false;
    for (const std::string& prefix : *allowed) fits |= absl::StartsWith(include, prefix);
    const bool cli_from_below =
        absl::StartsWith(include, "client/cli/") && !absl::StartsWith(source.path, "client/cli/");
    EXPECT_TRUE(fits && !cli_from_below) << source.path << ":" << number << " may not include " << include;
  });
}

// A program outside the tree includes these headers and has no others of ours.
TEST(TidyTest, PublicHeadersIncludePublicHeadersOnly) {
  ForEachLine([&](const Source& source, size_t number, const std::string& line) {
    if (!absl::StrContains(source.path, "/include/berth/")) return;
    // Headers of the standard library and of libc have no folder, or sys/.
    const std::string include = IncludeOf(line);
    if (include.empty() || (!absl::StrContains(line, "\"") && !absl::StrContains(include, "/"))) return;
    EXPECT_TRUE(absl::StartsWith(include, "absl/") || absl::StartsWith(include, "sys/") ||
                absl::StrContains(include, "/include/berth/"))
        << source.path << ":" << number << " includes " << include;
  });
}

TEST(TidyTest, GrpcIsIncludedInServiceAndClientOnly) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    // The header that is precompiled for all units.
    if (source.path == "deploy/bazel/system.h") return;
    const std::string include = IncludeOf(line);
    if (!absl::StartsWith(include, "grpcpp/") && !absl::StrContains(include, ".grpc.pb.h")) return;
    EXPECT_TRUE(absl::StartsWith(source.path, "daemon/service/") ||
                absl::StartsWith(source.path, "client/") || absl::StartsWith(source.path, "tests/"))
        << source.path << ":" << number;
  });
}

TEST(TidyTest, HeavyHeadersAreIncludedByFewSources) {
  IncludeGraph graph;
  for (const Source& source : Sources()) {
    // The header that is precompiled for all units includes them on purpose.
    if (!IsCpp(source.path) || source.path == "deploy/bazel/system.h") continue;
    std::vector<std::string>& includes = graph[source.path];
    for (const std::string& line : source.lines) {
      if (std::string name = IncludeOf(line); !name.empty()) includes.push_back(std::move(name));
    }
  }
  std::map<std::string, size_t> found = FindHeavyHeaders(graph);
  for (const auto& [header, sources] : AcceptedHeavyHeaders()) {
    EXPECT_EQ(found[header], sources) << header
                                      << ": correct its number in tests/tidy/heavy_includes.cc if it is smaller";
    found.erase(header);
  }
  for (const auto& [header, sources] : found) {
    ADD_FAILURE() << header << " brings a .pb.h, gRPC or CLI11 into " << sources << " sources, limit "
                  << kMaxSourcesOfHeavyHeader
                  << ": declare the classes that it names, and let sources include the rest";
  }
}

TEST(TidyTest, CudaIsIncludedInItsFolderOnly) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    const std::string include = IncludeOf(line);
    if (include != "cuda.h" && include != "cuda_runtime.h" && include != "nvml.h" && include != "nvrtc.h")
      return;
    EXPECT_TRUE(absl::StartsWith(source.path, "common/cuda/")) << source.path << ":" << number;
  });
}

TEST(TidyTest, CoreIsPure) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    if (!absl::StartsWith(source.path, "daemon/core/") || !IsCpp(source.path) || IsTest(source.path)) return;
    for (const char* const banned : {"absl::Now(", "system_clock", "steady_clock", "std::thread", "grpcpp",
                                     ".pb.h", "Mutex", "getrandom", "RandomId(", "std::random", "getenv("}) {
      EXPECT_FALSE(absl::StrContains(line, banned)) << source.path << ":" << number << " has " << banned;
    }
  });
}

TEST(TidyTest, LocksAreVisibleToThreadSanitizer) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    if (!IsCpp(source.path) || source.path == "common/mutex.h" || source.path == "common/notification.h") return;
    for (const char* const banned : {"Mutex", "MutexLock", "CondVar", "Notification"}) {
      EXPECT_FALSE(HasWord(line, absl::StrCat("absl::", banned)))
          << source.path << ":" << number << " passes by common/mutex.h or common/notification.h";
    }
  });
}

// An operator or NTP may set the wall clock during a wait.
TEST(TidyTest, DeadlinesUseSteadyClock) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    const bool ours = absl::StartsWith(source.path, "client/") || absl::StartsWith(source.path, "common/") ||
                      absl::StartsWith(source.path, "daemon/");
    // gRPC's alarms take a wall time; calls.cc ends such a wait by its own clock, too.
    if (!ours || !IsCpp(source.path) || IsTest(source.path) || absl::StrContains(source.path, "/testing/") ||
        source.path == "client/sdk/transport/calls.cc") {
      return;
    }
    EXPECT_FALSE(absl::StrContains(line, "absl::Now() +")) << source.path << ":" << number << " needs SteadyNow()";
  });
}

TEST(TidyTest, ThreadsReportFailedStarts) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    const bool ours = absl::StartsWith(source.path, "client/") || absl::StartsWith(source.path, "common/") ||
                      absl::StartsWith(source.path, "daemon/");
    const bool for_tests =
        absl::StrContains(source.path, "harness") || absl::StrContains(source.path, "/testing/");
    if (!ours || for_tests || !IsCpp(source.path) || IsTest(source.path) ||
        source.path == "common/thread.h" || source.path == "common/os/process_capacity.cc" ||
        absl::StartsWith(absl::StripAsciiWhitespace(line), "//")) {
      return;
    }
    for (const char* const banned : {"std::thread", "std::jthread", "std::async", "pthread_create"}) {
      EXPECT_FALSE(absl::StrContains(line, banned)) << source.path << ":" << number << " passes by common/thread.h";
    }
  });
}

TEST(TidyTest, CommandShowsNothingUnescaped) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    // exit_status.cc has the functions that escape and print; acquire.cc prints text for a shell that evaluates it.
    if (!absl::StartsWith(source.path, "client/cli/") || IsTest(source.path) ||
        source.path == "client/cli/exit_status.cc" || source.path == "client/cli/verbs/acquire.cc") {
      return;
    }
    for (const char* const banned : {"fputs(", "puts(", "printf(", "fwrite(", "dprintf(", "std::cout", "std::cerr"}) {
      EXPECT_FALSE(absl::StrContains(line, banned) && !absl::StrContains(line, "snprintf("))
          << source.path << ":" << number << " passes by Print(), PrintError() and Complain()";
    }
  });
}

TEST(TidyTest, FilesAreNotWrittenThroughLinks) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    const bool ours = absl::StartsWith(source.path, "client/") || absl::StartsWith(source.path, "common/") ||
                      absl::StartsWith(source.path, "daemon/");
    if (!ours || !IsCpp(source.path) || IsTest(source.path)) return;
    for (const char* const banned : {"fopen(", "std::ofstream(", "creat("}) {
      EXPECT_FALSE(absl::StrContains(line, banned))
          << source.path << ":" << number << " passes by common/os/whole_file.h";
    }
  });
}

// Returns the part of a line that people read: a comment, or all of a page's line.
absl::string_view ProseOf(const Source& source, absl::string_view line) {
  if (absl::EndsWith(source.path, ".md")) return line;
  const bool cpp = IsCpp(source.path) || absl::EndsWith(source.path, ".proto");
  const absl::string_view mark = cpp ? "// " : "# ";
  const size_t at = cpp ? line.find(mark) : line.find_first_not_of(' ');
  if (at == absl::string_view::npos || !absl::StartsWith(line.substr(at), mark)) return "";
  return line.substr(at + mark.size());
}

// Whether a sentence of the text begins with the word and a lower-case letter after it.
bool OpensSentence(absl::string_view text, absl::string_view word) {
  for (size_t at = text.find(word); at != absl::string_view::npos; at = text.find(word, at + 1)) {
    const absl::string_view after = text.substr(at + word.size());
    if (after.size() < 2 || after[0] != ' ' || !absl::ascii_islower(after[1])) continue;
    const absl::string_view before = text.substr(0, at);
    if (before.find_first_not_of(" -*>") == absl::string_view::npos) return true;
    if (before.size() > 1 && before.back() == ' ' && absl::StrContains(".:;?!", before.substr(before.size() - 2, 1))) {
      return true;
    }
  }
  return false;
}

TEST(TidyTest, SentencesBeginWithTheirSubject) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    const absl::string_view prose = ProseOf(source, line);
    for (const absl::string_view word : {"Who", "What", "Whose", "Whoever", "Of", "Beside"}) {
      EXPECT_FALSE(OpensSentence(prose, word))
          << source.path << ":" << number << " opens with " << word << ": name the thing that acts";
    }
  });
}

TEST(TidyTest, SentencesAreShort) {
  for (const Source& source : Sources()) {
    if (absl::StrContains(source.path, "/testdata/")) continue;
    for (const LongSentence& sentence : FindLongSentences(source.path, source.lines)) {
      ADD_FAILURE() << source.path << ":" << sentence.line << " has a sentence of " << sentence.words
                    << " words, limit " << kMaxWordsOfSentence << ": " << sentence.text << "...";
    }
  }
}

// Returns the names that the protocol fixes, from the .proto files.
const std::set<std::string>& ProtoNames() {
  static const auto* const kNames = [] {
    auto* const names = new std::set<std::string>;
    for (const Source& source : Sources()) {
      if (!absl::EndsWith(source.path, ".proto")) continue;
      for (const std::string& line : source.lines) {
        std::string code = line.substr(0, line.find("//"));
        for (char& c : code) c = absl::ascii_isalnum(c) || c == '_' ? c : ' ';
        for (const absl::string_view name : absl::StrSplit(code, ' ', absl::SkipEmpty())) names->emplace(name);
      }
    }
    return names;
  }();
  return *kNames;
}

// Whether the name at [begin, end) of the line is one of the protocol's, or its accessor in generated code. A field's
// bare name counts where its accessor is called.
bool IsProtoName(const Source& source, absl::string_view line, size_t begin, size_t end) {
  absl::string_view name = line.substr(begin, end - begin);
  const bool field = name == absl::AsciiStrToLower(name);
  bool accessor = !field || (end < line.size() && line[end] == '(') || !IsCpp(source.path);
  for (const char* const prefix : {"set_", "mutable_", "has_", "clear_", "add_"}) {
    accessor |= absl::ConsumePrefix(&name, prefix);
  }
  for (const char* const suffix : {"_size", "_Name"}) accessor |= absl::ConsumeSuffix(&name, suffix);
  return accessor && ProtoNames().contains(std::string(name));
}

bool IsNameChar(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// Blanks the strings, characters and the comment of a line of C++.
std::string CodeOf(absl::string_view line) {
  std::string code(line);
  char quote = 0;
  for (size_t i = 0; i < code.size(); ++i) {
    if (quote == 0 && absl::StartsWith(line.substr(i), "//")) return code.substr(0, i);
    const bool digits = i > 0 && absl::ascii_isdigit(line[i - 1]);
    if (quote == 0 && (line[i] == '"' || (line[i] == '\'' && !digits))) {
      quote = line[i];
    } else if (quote != 0) {
      code[i] = ' ';
      if (line[i] == quote) quote = 0;
      if (line[i] == '\\' && i + 1 < code.size()) code[++i] = ' ';
    }
  }
  return code;
}

// Returns where the text has the term as whole words or parts of a name, in the singular or plural; npos for nowhere.
// One of `gaps` may be between two words.
size_t FindTerm(absl::string_view text, const std::vector<std::string>& words, absl::string_view gaps, size_t from) {
  const auto is_part = [&](size_t at, absl::string_view word) -> size_t {
    const absl::string_view rest = text.substr(at);
    if (!absl::StartsWithIgnoreCase(rest, word)) return 0;
    // A part begins at a capital or after what is no letter.
    const bool begins = at == 0 || !absl::ascii_isalpha(text[at - 1]) ||
                        (absl::ascii_isupper(text[at]) && absl::ascii_islower(text[at - 1])) ||
                        (text[at - 1] == 'k' && absl::ascii_isupper(text[at]));
    size_t length = word.size();
    if (rest.size() > length && absl::ascii_tolower(rest[length]) == 's') ++length;
    const char after = rest.size() > length ? rest[length] : ' ';
    const bool ends = !absl::ascii_isalpha(after) ||
                      (absl::ascii_isupper(after) && absl::ascii_islower(rest[length - 1]));
    return begins && ends ? length : 0;
  };
  for (size_t at = from; at < text.size(); ++at) {
    size_t end = at;
    for (size_t i = 0; i < words.size(); ++i) {
      if (i > 0 && end < text.size() && absl::StrContains(gaps, text.substr(end, 1))) ++end;
      const size_t length = is_part(end, words[i]);
      if (length == 0) break;
      end += length;
      if (i + 1 == words.size()) return at;
    }
  }
  return absl::string_view::npos;
}

TEST(TidyTest, TermsAreFoundAsWordsAndPartsOfNames) {
  for (const char* const text : {"the lease word", "LeaseWord", "kLeaseWords", "lease_word_", "LEASE_WORDS"}) {
    EXPECT_NE(FindTerm(text, {"lease", "word"}, " _-", 0), absl::string_view::npos) << text;
  }
  for (const char* const text : {"release word", "LeaseWording", "lease of a word", "swordfish"}) {
    EXPECT_EQ(FindTerm(text, {"lease", "word"}, " _-", 0), absl::string_view::npos) << text;
  }
  EXPECT_EQ(CodeOf(R"(Say("told \"", 'x', 1'000); // told)"), R"(Say("        , '  , 1'000); )");
}

TEST(TidyTest, RetiredTermsAreNotUsed) {
  std::vector<std::vector<std::string>> terms;
  for (const RetiredTerm& retired : RetiredTerms()) terms.push_back(absl::StrSplit(retired.term, ' '));
  ForEachLine([&](const Source& source, size_t number, const std::string& line) {
    if (absl::StrContains(source.path, "/testdata/")) return;
    std::string text = line;
    for (const Unchanged& unchanged : UnchangedTexts()) {
      if (!absl::StartsWith(source.path, unchanged.path)) continue;
      if (unchanged.text.empty()) return;
      absl::StrReplaceAll({{unchanged.text, std::string(unchanged.text.size(), ' ')}}, &text);
    }
    const std::string code = IsCpp(source.path) ? CodeOf(text) : "";
    const std::string lower = absl::AsciiStrToLower(text);
    for (size_t i = 0; i < terms.size(); ++i) {
      const RetiredTerm& retired = RetiredTerms()[i];
      // Skips most lines: FindTerm() compares the term at each letter.
      if (!absl::StrContains(lower, terms[i].front())) continue;
      const absl::string_view searched = retired.names_only ? code : text;
      const absl::string_view gaps = retired.names_only ? "_" : " _-";
      for (size_t at = FindTerm(searched, terms[i], gaps, 0); at != absl::string_view::npos;
           at = FindTerm(searched, terms[i], gaps, at + 1)) {
        size_t begin = at, end = at;
        while (begin > 0 && IsNameChar(searched[begin - 1])) --begin;
        while (end < searched.size() && IsNameChar(searched[end])) ++end;
        EXPECT_TRUE(IsProtoName(source, searched, begin, end))
            << source.path << ":" << number << " has \"" << retired.term << "\": say " << retired.use
            << " (docs/concepts/glossary.md)";
      }
    }
  });
}

TEST(TidyTest, FilesHaveAtMost600Lines) {
  for (const Source& source : Sources()) {
    if (!IsCpp(source.path) && !absl::EndsWith(source.path, ".proto")) continue;
    EXPECT_LE(source.lines.size(), 600u) << source.path;
  }
}

TEST(TidyTest, LinesHaveAtMost120Bytes) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    if (!IsCpp(source.path)) return;
    EXPECT_LE(line.size(), 120u) << source.path << ":" << number;
  });
}

// Returns the name in the test macro that begins on a line, whose arguments may continue on later lines; empty for
// other lines.
std::string TestNameAt(const Source& source, size_t index) {
  const absl::string_view line = absl::StripAsciiWhitespace(source.lines[index]);
  bool is_test = false;
  for (const char* const macro : {"TEST(", "TEST_F(", "TEST_P(", "TYPED_TEST(", "TYPED_TEST_P("}) {
    is_test |= absl::StartsWith(line, macro);
  }
  if (!is_test) return "";
  std::string arguments(line.substr(line.find('(') + 1));
  for (++index; !absl::StrContains(arguments, ")") && index < source.lines.size(); ++index) {
    absl::StrAppend(&arguments, " ", absl::StripAsciiWhitespace(source.lines[index]));
  }
  const std::vector<std::string> parts = absl::StrSplit(arguments.substr(0, arguments.find(')')), ',');
  return parts.size() == 2 ? std::string(absl::StripAsciiWhitespace(parts[1])) : "";
}

TEST(TidyTest, TestNamesAreShort) {
  size_t tests = 0;
  for (const Source& source : Sources()) {
    if (!IsCpp(source.path)) continue;
    for (size_t i = 0; i < source.lines.size(); ++i) {
      const std::string name = TestNameAt(source, i);
      tests += name.empty() ? 0 : 1;
      EXPECT_LE(name.size(), 60u) << source.path << ":" << i + 1 << " " << name
                                  << ": name the subject, the condition and the result in about six words";
    }
  }
  EXPECT_GT(tests, 1'000u) << "the tree has more tests than were found";
}

TEST(TidyTest, NothingUnfinishedRemains) {
  // Spelled in two parts, so that this file passes its own rule.
  const std::vector<std::string> banned = {absl::StrCat("TO", "DO"), absl::StrCat("FIX", "ME"),
                                           absl::StrCat("XX", "X"), absl::StrCat("HA", "CK")};
  ForEachLine([&](const Source& source, size_t number, const std::string& line) {
    for (const std::string& word : banned) {
      EXPECT_FALSE(HasWord(line, word)) << source.path << ":" << number;
    }
  });
}

TEST(TidyTest, TestsDoNotSleep) {
  const std::vector<std::string> banned = {absl::StrCat("Sleep", "For("), absl::StrCat("sleep", "_for("),
                                           absl::StrCat("usl", "eep("), absl::StrCat(" sl", "eep(")};
  ForEachLine([&](const Source& source, size_t number, const std::string& line) {
    if (!absl::EndsWith(source.path, "_test.cc")) return;
    for (const std::string& word : banned) {
      EXPECT_FALSE(absl::StrContains(line, word)) << source.path << ":" << number;
    }
  });
}

TEST(TidyTest, EverySourceIsBuilt) {
  std::map<std::string, std::string> build_files;
  for (const Source& source : Sources()) {
    const fs::path path = source.path;
    if (path.filename() != "BUILD.bazel") continue;
    for (const std::string& line : source.lines)
      absl::StrAppend(&build_files[path.parent_path().string()], line, "\n");
  }
  for (const Source& source : Sources()) {
    if (!IsCpp(source.path) && !absl::EndsWith(source.path, ".proto")) continue;
    // A package is the nearest folder above that has a BUILD file.
    fs::path package = fs::path(source.path).parent_path();
    while (!package.empty() && !build_files.contains(package.string())) package = package.parent_path();
    const fs::path name = fs::relative(source.path, package);
    const std::string& targets = build_files[package.string()];
    // By its own name, or by a target from which a macro makes that name.
    EXPECT_TRUE(absl::StrContains(targets, absl::StrCat("\"", name.string(), "\"")) ||
                absl::StrContains(targets, absl::StrCat("\"", name.stem().string(), "\"")))
        << source.path << " is in no target";
  }
}

TEST(TidyTest, EachWireElementIsCommented) {
  for (const Source& source : Sources()) {
    if (!absl::StartsWith(source.path, "proto/") || !absl::EndsWith(source.path, ".proto")) continue;
    for (size_t i = 1; i < source.lines.size(); ++i) {
      const absl::string_view line = absl::StripAsciiWhitespace(source.lines[i]);
      const bool element = absl::StartsWith(line, "message ") || absl::StartsWith(line, "service ") ||
                           absl::StartsWith(line, "rpc ") || absl::StartsWith(line, "enum ") ||
                           absl::StartsWith(line, "oneof ") ||
                           (absl::StrContains(line, " = ") && absl::EndsWith(line, ";") &&
                            !absl::StartsWith(line, "//") && !absl::StartsWith(line, "syntax"));
      if (!element) continue;
      EXPECT_TRUE(absl::StartsWith(absl::StripAsciiWhitespace(source.lines[i - 1]), "//"))
          << source.path << ":" << i + 1 << " has no comment";
    }
  }
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    fprintf(stderr, "usage: tidy_test <path of WORKSPACE>\n");
    return 2;
  }
  berth::g_workspace_file = argv[1];
  return RUN_ALL_TESTS();
}
