#include "client/cli/command.h"

#include <signal.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cli/run/child.h"
#include "common/command_line.h"

namespace berth::cli {

namespace {

// Rejects what the parser would call only inconvertible.
template <std::integral Number>
std::string CheckNumber(const std::string& text) {
  using Limits = std::numeric_limits<Number>;
  Number value = 0;
  if (absl::SimpleAtoi(text, &value)) return "";
  return absl::StrCat("\"", text, "\" is not a whole number from ", Limits::min(), " to ", Limits::max());
}

}  // namespace

Option Option::Required() const { return Option(option_->required()); }
Option Option::Excludes(Option other) const { return Option(option_->excludes(other.option_)); }
Option Option::Needs(Option other) const { return Option(option_->needs(other.option_)); }
Option Option::Check(std::function<std::string(const std::string&)> check) const {
  return Option(option_->check(std::move(check)));
}
Option Option::MayBeEmpty() const {
  // The first check, which AddOption() adds.
  option_->get_validator(0)->active(false);
  return Check(&CheckNotArgument);
}
Option Option::AtLeast(uint64_t least) const {
  // The second check, which AddOption() adds, names the range of the type.
  option_->get_validator(1)->active(false);
  return Check([least](const std::string& text) {
    uint64_t value = 0;
    if (absl::SimpleAtoi(text, &value) && value >= least) return std::string();
    return absl::StrCat("\"", text, "\" is not a whole number from ", least, " to ",
                        std::numeric_limits<uint64_t>::max());
  });
}
Option Option::Within(int least, int most) const {
  // The second check, which AddOption() adds, names the range of the type.
  option_->get_validator(1)->active(false);
  return Check([least, most](const std::string& text) {
    int value = 0;
    if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) return std::string();
    return absl::StrCat("\"", text, "\" is not a whole number from ", least, " to ", most);
  });
}
Option Option::OneOf(std::vector<std::string> values) const {
  return Option(option_->check(CLI::IsMember(std::move(values))));
}
Option Option::OneWord() const { return Option(option_->allow_extra_args(false)); }
Option Option::List() const {
  return OneWord().Check([](const std::string& text) {
    for (const absl::string_view name : absl::StrSplit(text, ',')) {
      if (absl::StripAsciiWhitespace(name).empty()) return absl::StrCat("\"", text, "\" has an empty name");
    }
    return std::string();
  });
}
Option Option::ShowDefault() const { return Option(option_->capture_default_str()); }
Option Option::Hide() const { return Option(option_->group("")); }

Command Command::AddSubcommand(const std::string& name, const std::string& description) const {
  return Command(app_->add_subcommand(name, description), chosen_);
}

void Command::RequireSubcommand() const { app_->require_subcommand(1); }

void Command::SetFooter(const std::string& text) const { app_->footer(text); }

template <typename Value>
Option Command::AddOption(const std::string& name, Value* value, const std::string& description) const {
  CLI::Option* const option = app_->add_option(name, *value, description)->check(CheckNotBlank);
  // Before the checks.
  if (!absl::StartsWith(name, "-")) option->transform(std::function<std::string(std::string)>(&WithoutMark));
  if constexpr (std::integral<Value>) {
    option->check(&CheckNumber<Value>);
  } else if constexpr (std::same_as<Value, std::optional<uint64_t>>) {
    option->check(&CheckNumber<uint64_t>);
  }
  return Option(option);
}

template Option Command::AddOption(const std::string&, std::string*, const std::string&) const;
template Option Command::AddOption(const std::string&, int*, const std::string&) const;
template Option Command::AddOption(const std::string&, uint64_t*, const std::string&) const;
template Option Command::AddOption(const std::string&, std::optional<uint64_t>*, const std::string&) const;
template Option Command::AddOption(const std::string&, std::vector<std::string>*, const std::string&) const;

Option Command::AddFlag(const std::string& name, bool* value, const std::string& description) const {
  return Option(app_->add_flag(name, *value, description)->check(CheckFlag));
}

void Command::Runs(Verb run) const {
  app_->callback([chosen = chosen_, run = std::move(run)] {
    ReleaseSignals();
    // Output above RLIMIT_FSIZE is an error. A program that is started has the effect of this signal as this process
    // had it, and its wrapper prints only to stderr.
    ::signal(SIGXFSZ, SIG_IGN);
    *chosen = run;
  });
}

void Command::RunsProgram(const std::vector<std::string>& separated, std::vector<std::string>* program,
                          Verb run) const {
  app_->fallthrough(false);
  app_->prefix_command();
  app_->callback([app = app_, chosen = chosen_, &separated, program, run = std::move(run)] {
    // If the program's name stood before the "--", the "--" is one of its arguments.
    *program = app->remaining();
    const bool ended = !separated.empty() && program->empty();
    program->insert(program->end(), separated.begin() + (ended ? 1 : 0), separated.end());
    if (!ended && !program->empty() && absl::StartsWith(program->front(), "-")) {
      throw CLI::ExtrasError({program->front()});
    }
    if (program->empty()) throw CLI::RequiredError("COMMAND");
    *chosen = run;
  });
}

bool Command::parsed() const { return app_->parsed(); }

std::optional<bool> Command::TakesValue(const std::string& option) const {
  if (const CLI::Option* const found = app_->get_option_no_throw(option)) return found->get_items_expected_max() > 0;
  for (CLI::App* const subcommand : app_->get_subcommands([](const CLI::App*) { return true; })) {
    if (const std::optional<bool> takes = Command(subcommand, chosen_).TakesValue(option)) return takes;
  }
  return std::nullopt;
}

}  // namespace berth::cli
