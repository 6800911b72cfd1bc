#include "tests/support/testing.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace berth::testing {
namespace {

// Pauses between two checks of a condition, in milliseconds: most conditions hold at once, and the others leave the
// processor to the processes that the test waits for.
constexpr int kFirstPauseMs = 2;
constexpr int kLongestPauseMs = 50;
// The other user's uid for clients: no system user, and not the overflow uid, which Berth refuses.
constexpr uid_t kOtherUser = 65533;

const pid_t program = ::getpid();

std::string DataPath(absl::string_view name) {
  const char* const folder = getenv("TEST_SRCDIR");
  const char* const workspace = getenv("TEST_WORKSPACE");
  if (folder != nullptr && workspace != nullptr) return absl::StrCat(folder, "/", workspace, "/", name);
  char here[4096];
  if (::getcwd(here, sizeof(here)) == nullptr) Fatal(absl::InternalError("getcwd"), name);
  return absl::StrCat(here, "/", name);
}

// A folder of copies that is removed when the test program ends.
class Copies {
 public:
  static Copies& Get() {
    static Copies copies;
    return copies;
  }

  std::string Of(absl::string_view name) {
    const std::lock_guard lock(mu_);
    const std::filesystem::path copy = absl::StrCat(folder_, "/", name);
    if (std::filesystem::exists(copy)) return copy;
    std::filesystem::create_directories(copy.parent_path());
    std::filesystem::copy_file(std::filesystem::canonical(DataPath(name)), copy);
    return copy;
  }
  void Remove() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

 private:
  Copies() {
    if (::mkdtemp(folder_.data()) == nullptr) Fatal(absl::InternalError("mkdtemp"), folder_);
    ::chmod(folder_.c_str(), 0755);
  }
  ~Copies() { Remove(); }

  std::mutex mu_;
  std::string folder_ = "/tmp/berth-programs-XXXXXX";
};

}  // namespace

void Fatal(const absl::Status& status, absl::string_view what) {
  const std::string text = absl::StrCat("FATAL: ", what, ": ", status.ToString());
  fprintf(stderr, "%s\n", text.c_str());
  // A child would run the remaining cases once more.
  if (::getpid() != program) abort();
  throw std::runtime_error(text);
}

::testing::AssertionResult Ok(const absl::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.ToString();
}

::testing::AssertionResult Refused(const absl::Status& status, Reason reason,
                                   const std::map<std::string, std::string>& named_values) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value() || details->reason != reason) {
    return ::testing::AssertionFailure()
           << "expected " << ReasonName(reason) << ", got " << status.ToString();
  }
  for (const auto& [name, value] : named_values) {
    const auto it = details->metadata.find(name);
    if (it == details->metadata.end() || it->second != value) {
      return ::testing::AssertionFailure()
             << "expected named value " << name << " to be \"" << value << "\", got "
             << (it == details->metadata.end() ? "none" : it->second) << " in " << status.ToString();
    }
    if (!absl::StrContains(status.message(), value)) {
      return ::testing::AssertionFailure()
             << "named value " << name << " (" << value << ") is missing in the text: " << status.ToString();
    }
  }
  return ::testing::AssertionSuccess();
}

bool Within(absl::Duration patience, const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + patience;
  for (int pause = kFirstPauseMs; !condition(); pause = std::min(2 * pause, kLongestPauseMs)) {
    if (absl::Now() > deadline) return condition();
    ::poll(nullptr, 0, pause);
  }
  return true;
}

bool Eventually(const std::function<bool()>& condition, absl::Duration patience) {
  if (Within(patience, condition)) return true;
  static std::mutex mu;
  static const ::testing::TestInfo* of = nullptr;
  static int ended = 0;
  const std::lock_guard lock(mu);
  if (const auto* const now = ::testing::UnitTest::GetInstance()->current_test_info(); std::exchange(of, now) != now)
    ended = 0;
  if (of != nullptr) ::testing::Test::RecordProperty("ran_out_of_time", ++ended);
  return false;
}

bool IsRoot() { return ::geteuid() == 0; }

bool MayUnshare(int kinds) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(kinds) == 0 ? 0 : 1);
  int status = 1;
  return child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
}

bool EnterOwnMounts() {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

std::optional<uid_t> OtherUser() {
  const char* const asked = getenv("BERTH_TEST_OTHER_USER");
  if (asked == nullptr || *asked == '\0') return std::nullopt;
  if (!IsRoot()) Fatal(absl::PermissionDeniedError("needs root"), "BERTH_TEST_OTHER_USER");
  return kOtherUser;
}

uid_t ClientUid() { return OtherUser().value_or(::geteuid()); }
gid_t ClientGid() { return OtherUser().has_value() ? static_cast<gid_t>(*OtherUser()) : ::getegid(); }

void GiveToClients(const std::string& path) {
  if (!OtherUser().has_value()) return;
  const auto give = [](const std::filesystem::path& each) {
    if (::lchown(each.c_str(), ClientUid(), ClientGid()) < 0) Fatal(absl::InternalError("lchown"), each.string());
  };
  give(path);
  if (!std::filesystem::is_directory(path)) return;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) give(entry.path());
}

std::string ProgramPath(absl::string_view name) {
  return OtherUser().has_value() ? Copies::Get().Of(name) : DataPath(name);
}

}  // namespace berth::testing
