#include "client/testing/environment.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "client/testing/leak_listener.h"
#include "common/label.h"
#include "common/terminal_text.h"

namespace berth::testing {
namespace {

Environment* g_environment = nullptr;

bool RequiredByTheEnvironment() {
  const char* const set = ::getenv(kRequireVariable);
  return set != nullptr && absl::string_view(set) != "" && absl::string_view(set) != "0";
}

}  // namespace

Environment::Environment(EnvironmentOptions options)
    : options_(std::move(options)), required_(options_.required || RequiredByTheEnvironment()) {}

Environment::~Environment() {
  if (g_environment == this) g_environment = nullptr;
}

void Environment::SetUp() {
  SessionOptions session = options_.session;
  if (session.label.empty()) session.label = ToLabel(program_invocation_short_name);
  absl::StatusOr<std::shared_ptr<Session>> opened = Session::Open(session);
  status_ = opened.status();
  if (opened.ok()) session_ = *std::move(opened);
  g_environment = this;
  if (status_.ok()) return;
  const std::string why(status_.message());
  // Skip only where there is no daemon. A refusal needs attention, so it fails.
  if (required_ || !absl::IsUnavailable(status_)) {
    FAIL() << "no Berth session: " << why << (required_ ? " (and one is required)" : "");
  }
  ::fprintf(stderr, "berth: %s: tests that need it are SKIPPED; %s=1 makes that a failure\n", ToTerminal(why).c_str(),
            kRequireVariable);
}

void Environment::TearDown() { session_.reset(); }

Environment* Environment::Get() { return g_environment; }

void Install(EnvironmentOptions options) {
  ::testing::AddGlobalTestEnvironment(new Environment(std::move(options)));
  // GoogleTest notifies listeners of a test's end in reverse order. LeakListener comes before GoogleTest's own printer,
  // so that the printer reports the leaks.
  ::testing::UnitTest::GetInstance()->listeners().Append(new LeakListener);
}

}  // namespace berth::testing
