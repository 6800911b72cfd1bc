#include "tests/support/actor/actor_handle.h"

#include <stdint.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_wire.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

SubprocessOptions ProcessOf(const std::string& folder, const ActorOptions& options) {
  SubprocessOptions process = {.argv = {ProgramPath(options.program)},
                               .environment = {absl::StrCat("BERTH_FOLDER=", folder), "BERTH_SESSION",
                                               "BERTH_GPU_TEST_CONCURRENCY", "REALIZAR_GPU_TEST_CONCURRENCY"},
                               .pid_namespace = options.pid_namespace,
                               .of_operator = options.uid != 0};
  for (const std::string& entry : options.environment) process.environment.push_back(entry);
  return process;
}

}  // namespace

Actor::Actor(const TestDaemon& daemon, const ActorOptions& options) : Actor(daemon.folder(), options) {}

Actor::Actor(const std::string& folder, const ActorOptions& options)
    : process_(Subprocess::Start(ProcessOf(folder, options))) {
  if (options.uid != 0) Do(absl::StrCat("setuid ", options.uid));
  if (options.open) Do("open");
}

absl::StatusOr<std::string> Actor::Ask(absl::string_view command) {
  SendLine(command);
  return Answer();
}

absl::StatusOr<std::string> Actor::Answer(absl::Duration patience) {
  absl::StatusOr<std::string> line = process_.ReadLine(patience);
  if (!line.ok()) return line.status();
  return DecodeAnswer(*line);
}

std::string Actor::Do(absl::string_view command) {
  const absl::StatusOr<std::string> answer = Ask(command);
  EXPECT_TRUE(Ok(answer)) << command;
  return answer.value_or("");
}

SessionId Actor::session() {
  uint64_t id = 0;
  const std::string text = Do("session");
  EXPECT_TRUE(absl::SimpleAtoi(text, &id)) << "session \"" << text << "\"";
  return SessionId(id);
}

BlockHandle Actor::Allocate(absl::string_view name, uint64_t bytes, absl::string_view kind) {
  const std::string option = kind.empty() ? "" : absl::StrCat(" kind=", kind);
  const absl::StatusOr<BlockHandle> handle = ParseHandle(Do(absl::StrCat("allocate ", name, " ", bytes, option)));
  EXPECT_TRUE(Ok(handle)) << name;
  return handle.value_or(BlockHandle());
}

void Actor::Kill() {
  process_.Kill();
  process_.Wait();
}

void Actor::Quit() {
  process_.CloseInput();
  EXPECT_EQ(process_.Wait(), 0) << "exit code of an actor";
}

}  // namespace berth::testing
