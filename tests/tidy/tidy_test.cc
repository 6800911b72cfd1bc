// Holds the rules that keep the tree readable: which layer may see which, what may be included where, how long a
// file may be, and that nothing lies about unused or half done.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

// A layer by the path that its files begin with, and the paths that it may include from. The longest match counts.
const std::map<std::string, std::vector<std::string>>& Layers() {
  static const auto* const kLayers = new std::map<std::string, std::vector<std::string>>{
      {"common/", {"common/"}},
      {"daemon/core/", {"common/", "daemon/core/"}},
      {"daemon/device/", {"common/", "daemon/device/"}},
      {"daemon/vault/",
       {"common/", "daemon/vault/", "daemon/device/device_record.h", "daemon/device/monitor_wire.h",
        "daemon/device/worker_exit.h"}},
      {"daemon/broker/",
       {"common/", "daemon/core/", "daemon/device/", "daemon/ledger/", "daemon/vault/", "daemon/broker/"}},
      {"daemon/service/",
       {"common/", "daemon/core/", "daemon/vault/", "daemon/broker/", "daemon/service/", "berth/v1/",
        "google/rpc/"}},
      {"daemon/", {"common/", "daemon/", "berth/v1/"}},
      {"client/cli/", {"common/", "client/", "berth/v1/", "google/rpc/"}},
      {"client/", {"common/", "client/", "berth/v1/", "google/rpc/"}},
      {"deploy/", {"common/", "client/"}},
      {"tests/", {""}},
  };
  return *kLayers;
}

struct Source {
  std::string path;
  std::vector<std::string> lines;
};

std::string g_workspace_file;

// Every source of the tree, by its path from the root.
const std::vector<Source>& Sources() {
  static const auto* const kSources = [] {
    auto* const sources = new std::vector<Source>;
    const fs::path root = fs::canonical(g_workspace_file).parent_path();
    for (const char* const top : {"common", "proto", "daemon", "client", "tests", "deploy", "third_party"}) {
      if (!fs::exists(root / top)) continue;
      for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
        if (!entry.is_regular_file()) continue;
        std::ifstream stream(entry.path());
        std::stringstream text;
        text << stream.rdbuf();
        sources->push_back({fs::relative(entry.path(), root).string(), absl::StrSplit(text.str(), '\n')});
      }
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

// The name in an include line and whether it was in quotes; empty for other lines.
std::string IncludeOf(const std::string& line) {
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "#include ") || rest.size() < 3) return "";
  const char end = rest[0] == '<' ? '>' : '"';
  rest.remove_prefix(1);
  return std::string(rest.substr(0, rest.find(end)));
}

// Whether `word` stands in `line` and is no part of a longer one.
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

TEST(TidyTest, FindsTheTree) { EXPECT_GT(Sources().size(), 50u); }

TEST(TidyTest, ArrowsPointDownOnly) {
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

TEST(TidyTest, GrpcIsSeenByTheServiceAndTheClientAlone) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    const std::string include = IncludeOf(line);
    if (!absl::StartsWith(include, "grpcpp/") && !absl::StrContains(include, ".grpc.pb.h")) return;
    EXPECT_TRUE(absl::StartsWith(source.path, "daemon/service/") ||
                absl::StartsWith(source.path, "client/") || absl::StartsWith(source.path, "tests/"))
        << source.path << ":" << number;
  });
}

TEST(TidyTest, CudaIsSeenByItsSeamAlone) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    const std::string include = IncludeOf(line);
    if (include != "cuda.h" && include != "cuda_runtime.h" && include != "nvml.h" && include != "nvrtc.h")
      return;
    EXPECT_TRUE(absl::StartsWith(source.path, "common/cuda/")) << source.path << ":" << number;
  });
}

TEST(TidyTest, TheCoreIsPure) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    if (!absl::StartsWith(source.path, "daemon/core/") || !IsCpp(source.path) || IsTest(source.path)) return;
    for (const char* const banned : {"absl::Now(", "system_clock", "steady_clock", "std::thread", "grpcpp",
                                     ".pb.h", "Mutex", "getrandom", "RandomId(", "std::random", "getenv("}) {
      EXPECT_FALSE(absl::StrContains(line, banned)) << source.path << ":" << number << " has " << banned;
    }
  });
}

TEST(TidyTest, LocksAreThoseThatThreadSanitizerSees) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    if (!IsCpp(source.path) || source.path == "common/mutex.h" || source.path == "common/notification.h") return;
    for (const char* const banned : {"Mutex", "MutexLock", "CondVar", "Notification"}) {
      EXPECT_FALSE(HasWord(line, absl::StrCat("absl::", banned)))
          << source.path << ":" << number << " passes by common/mutex.h or common/notification.h";
    }
  });
}

TEST(TidyTest, NoFileWantsToBeTwo) {
  for (const Source& source : Sources()) {
    if (!IsCpp(source.path) && !absl::EndsWith(source.path, ".proto")) continue;
    EXPECT_LE(source.lines.size(), 600u) << source.path;
  }
}

TEST(TidyTest, NoLineIsTooLong) {
  ForEachLine([](const Source& source, size_t number, const std::string& line) {
    if (!IsCpp(source.path)) return;
    EXPECT_LE(line.size(), 120u) << source.path << ":" << number;
  });
}

TEST(TidyTest, NothingIsLeftOpen) {
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
    // By its own name, or as a target from which a macro makes that name.
    EXPECT_TRUE(absl::StrContains(targets, absl::StrCat("\"", name.string(), "\"")) ||
                absl::StrContains(targets, absl::StrCat("\"", name.stem().string(), "\"")))
        << source.path << " is in no target";
  }
}

TEST(TidyTest, EveryWireElementIsCommented) {
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
