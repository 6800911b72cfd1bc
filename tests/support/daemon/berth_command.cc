#include "tests/support/daemon/berth_command.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/testing.h"

namespace berth::testing {

Subprocess BerthCommand::Start(const std::vector<std::string>& words, std::vector<std::string> wrapper) const {
  SubprocessOptions options = {.argv = std::move(wrapper),
                               .environment = {absl::StrCat("BERTH_FOLDER=", folder_), "BERTH_SESSION"}};
  options.argv.push_back(ProgramPath("client/cli/berth"));
  options.argv.insert(options.argv.end(), words.begin(), words.end());
  return Subprocess::Start(options);
}

std::string BerthCommand::Show(const std::vector<std::string>& words) const {
  Subprocess command = Start(words);
  std::string text = command.ReadAll();
  EXPECT_EQ(command.Wait(), 0) << text;
  return text;
}

nlohmann::json BerthCommand::ShowJson(std::vector<std::string> words) const {
  words.push_back("--json");
  const std::string text = Show(words);
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << text;
  return json;
}

}  // namespace berth::testing
