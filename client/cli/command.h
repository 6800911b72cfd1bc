// Command: a command of the program as its parser knows it, with options, arguments and subcommands.
//
//   const Command verb = app.AddSubcommand("explain", "Show why a waiter waits for permits");
//   const auto waiter = std::make_shared<std::string>();
//   verb.AddOption("WAITER", waiter.get(), "The waiter's number in `berth permits`").Required();
//   verb.Runs([&globals, waiter] { return Explain(globals, *waiter); });
//
// The parser is CLI11, which takes seconds to compile: only main.cc and command.cc include it.

#ifndef CLIENT_CLI_COMMAND_H_
#define CLIENT_CLI_COMMAND_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/exit_status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace berth::cli {

using Verb = std::function<ExitStatus()>;

// An option or argument. A copy means the same option, which the parser owns. The methods return the option itself.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option Required() const;
  // Rejects the command line if the other option is given, or is missing.
  Option Excludes(Option other) const;
  Option Needs(Option other) const;
  // `check` returns the error in a value; empty if valid.
  Option Check(std::function<std::string(const std::string&)> check) const;
  // Rejects the values for which `parse` returns an error. The verb parses the value again, without an error.
  template <typename Parse>
  Option Parses(Parse parse) const {
    return Check([parse](const std::string& text) { return std::string(parse(text).status().message()); });
  }
  // Accepts an empty or blank value, for text of which none is as good as an empty one.
  Option MayBeEmpty() const;
  // For a uint64_t, which may be optional.
  Option AtLeast(uint64_t least) const;
  // For an integer.
  Option Within(int least, int most) const;
  // The help text lists the values.
  Option OneOf(std::vector<std::string> values) const;
  // For several values: one word after the name is the value of one use.
  Option OneWord() const;
  // As OneWord(), for a list of names separated by commas. Rejects an empty name; the verb splits the list.
  Option List() const;
  // The help text shows the variable's present value as the default.
  Option ShowDefault() const;
  Option Hide() const;

 private:
  CLI::Option* option_;
};

// A copy means the same command, which the parser owns.
class Command {
 public:
  // When the command is parsed, it stores in `chosen` what it Runs(). Both must outlive the parsing.
  Command(CLI::App* app, Verb* chosen) : app_(app), chosen_(chosen) {}

  Command AddSubcommand(const std::string& name, const std::string& description) const;
  void RequireSubcommand() const;
  // The text below the options in the help text.
  void SetFooter(const std::string& text) const;

  // The parser writes the values, so that verbs read them only when they run. A name without "-" is an argument's. An
  // empty or blank value is rejected, unless MayBeEmpty().
  // Value: std::string, int, uint64_t, std::optional<uint64_t> or std::vector<std::string>.
  template <typename Value>
  Option AddOption(const std::string& name, Value* value, const std::string& description) const;
  Option AddFlag(const std::string& name, bool* value, const std::string& description) const;

  void Runs(Verb run) const;
  // As Runs(), for a command that starts a program: all words from the first one that is no option of the command
  // belong to the program, with and without "--". Stores them in `program`. The parser does not see the words from "--"
  // on, which are `separated` with the "--".
  void RunsProgram(const std::vector<std::string>& separated, std::vector<std::string>* program, Verb run) const;

  // Whether the command line names the command.
  bool parsed() const;
  // Returns whether the option of the command, or of a subcommand, takes a value; nothing if none has the option.
  std::optional<bool> TakesValue(const std::string& option) const;

 private:
  CLI::App* app_;
  Verb* chosen_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_COMMAND_H_
