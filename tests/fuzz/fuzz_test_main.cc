// Runs a fuzzer as a test, without libFuzzer. `--write-seeds=FOLDER` writes its seeds there instead.
//
// BERTH_FUZZ_SECONDS sets how long (0, in the soak 3; at least 200 mutations), BERTH_FAULT_SEED replays the mutations
// of a run.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/environment.h"

namespace berth::fuzz {
namespace {

std::string g_name;

// The current input.
const std::string* g_input = nullptr;

// Prints the input at which the fuzzer died: `printf '…' >corpus/NAME/…` stores it.
void PrintInput(int number) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "died at: printf '";
  for (const char byte : *g_input) {
    text += {'\\', 'x', kDigits[static_cast<uint8_t>(byte) >> 4], kDigits[static_cast<uint8_t>(byte) & 15]};
  }
  text += "'\n";
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ::_exit(1);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

void RunOne(const std::string& input) {
  g_input = &input;
  EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()), 0);
}

std::vector<std::string> Corpus() {
  std::vector<std::string> inputs = Seeds();
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpus/" + g_name, none)) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    inputs.push_back(text.str());
  }
  return inputs;
}

std::string Mutate(const std::vector<std::string>& corpus, std::mt19937_64& random) {
  std::string input = corpus[random() % corpus.size()];
  for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
    const size_t at = input.empty() ? 0 : random() % input.size();
    switch (random() % 6) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
      case 1:
        if (!input.empty()) input[at] ^= static_cast<char>(1 << random() % 8);
        break;
      case 2:
        input.resize(at);
        break;
      case 3:
        input.insert(at, random() % 9, static_cast<char>(random()));
        break;
      case 4: {
        // A number near a limit of its type.
        const uint64_t number = (uint64_t{1} << random() % 64) - random() % 2;
        for (size_t i = 0; i < 8 && at + i < input.size(); ++i) input[at + i] = static_cast<char>(number >> (8 * i));
        break;
      }
      default: {
        const std::string& other = corpus[random() % corpus.size()];
        input = input.substr(0, at) + other.substr(other.empty() ? 0 : random() % other.size());
      }
    }
  }
  return input;
}

constexpr uint64_t kFewestMutations = 200;

TEST(FuzzTest, EveryInputIsAnswered) {
  const std::vector<std::string> corpus = Corpus();
  ASSERT_FALSE(corpus.empty());
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::signal(number, PrintInput);
  for (const std::string& input : corpus) RunOne(input);
  const uint64_t seed = testing::SeedFromEnvironment("BERTH_FAULT_SEED");
  const absl::Time end =
      absl::Now() + absl::Seconds(testing::FromEnvironment("BERTH_FUZZ_SECONDS", testing::GateOrSoak(0, 3)));
  std::mt19937_64 random(seed);
  uint64_t runs = 0;
  for (; (runs < kFewestMutations || absl::Now() < end) && !HasFailure(); ++runs) RunOne(Mutate(corpus, random));
  std::cout << corpus.size() << " inputs, " << runs << " mutations\n";
}

}  // namespace
}  // namespace berth::fuzz

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  berth::fuzz::g_name = std::string(absl::StripSuffix(std::filesystem::path(argv[0]).filename().string(), "_test"));
  absl::string_view argument = argc > 1 ? argv[1] : "";
  if (!absl::ConsumePrefix(&argument, "--write-seeds=")) return RUN_ALL_TESTS();
  int number = 0;
  for (const std::string& seed : berth::fuzz::Seeds()) {
    std::ofstream(absl::StrCat(argument, "/seed-", ++number), std::ios::binary) << seed;
  }
  return 0;
}
