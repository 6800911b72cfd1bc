// A session's secret is in no file except the ledger, which only the daemon's user can read. It is in no output, and in
// no process's arguments or environment: not as its bytes, nor in digits or letters.

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "common/secret.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Returns every form in which the secret might be written.
std::set<std::string> FormsOf(const Secret& secret) {
  const std::string bytes(reinterpret_cast<const char*>(secret.bits.data()), secret.bits.size());
  const std::string hex = absl::BytesToHexString(bytes);
  std::set<std::string> forms = {bytes, hex, absl::AsciiStrToUpper(hex)};
  // For each alignment among other bytes: the letters that depend only on the secret.
  for (size_t before = 0; before < 3; ++before) {
    const std::string padded = std::string(before, '\0') + bytes;
    for (const std::string& text : {absl::Base64Escape(padded), absl::WebSafeBase64Escape(padded)}) {
      const size_t begin = (before * 8 + 5) / 6;
      forms.insert(text.substr(begin, padded.size() * 8 / 6 - begin));
    }
  }
  return forms;
}

TEST(SecretFormsTest, EachFormOfSecretIsFound) {
  Secret secret;
  for (size_t i = 0; i < secret.bits.size(); ++i) secret.bits[i] = static_cast<uint8_t>(0xf1 + 7 * i);
  const std::string bytes(reinterpret_cast<const char*>(secret.bits.data()), secret.bits.size());
  const std::set<std::string> forms = FormsOf(secret);
  const auto found = [&](const std::string& text) {
    for (const std::string& form : forms) {
      if (absl::StrContains(text, form)) return true;
    }
    return false;
  };
  for (const char* const before : {"", "a", "ab", "abc"}) {
    const std::string text = before + bytes + "after";
    EXPECT_TRUE(found(text));
    EXPECT_TRUE(found(absl::BytesToHexString(text)));
    EXPECT_TRUE(found(absl::AsciiStrToUpper(absl::BytesToHexString(text))));
    EXPECT_TRUE(found(absl::Base64Escape(text)));
    EXPECT_TRUE(found(absl::WebSafeBase64Escape(text)));
  }
  EXPECT_FALSE(found(absl::Base64Escape(std::string(100, 'x'))));
}

class SecretsTest : public ::testing::Test {
 protected:
  SecretsTest() {
    char folder[] = "/tmp/berth-secrets-XXXXXX";
    folder_ = ::mkdtemp(folder);
    // The daemon's output goes to a file.
    const std::string program = folder_ + "/berthd";
    std::ofstream(program) << "#!/bin/sh\nexec " << ProgramPath("daemon/berthd") << " \"$@\" >" << folder_
                           << "/said 2>&1\n";
    ::chmod(program.c_str(), 0755);
    daemon_.emplace(TestDaemonOptions{.program = program,
                                      .config = absl::StrCat("[log]\nfile = \"", folder_, "/log\"\nfences = true\n")});
  }
  ~SecretsTest() override {
    daemon_.reset();
    fs::remove_all(folder_);
  }

  // Returns the places that contain a form of the secret.
  std::vector<std::string> Where(const Secret& secret) {
    const std::set<std::string> forms = FormsOf(secret);
    std::vector<std::string> where;
    const auto look = [&](const std::string& name) {
      const std::string text = ReadAll(name);
      for (const std::string& form : forms) {
        if (!absl::StrContains(text, form)) continue;
        where.push_back(name);
        return;
      }
    };
    for (const std::string& folder : {daemon_->folder() + "/..", folder_}) {
      for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        if (entry.is_regular_file()) look(entry.path());
      }
    }
    for (const ChildInfo& process : ProcessesWith("berthd", absl::StrCat("--folder=", daemon_->folder()))) {
      looked_.insert(process.name);
      for (const char* const what : {"cmdline", "environ", "comm"}) {
        look(absl::StrCat("/proc/", process.pid, "/", what));
      }
    }
    return where;
  }

  std::string folder_;
  std::optional<TestDaemon> daemon_;
  std::set<std::string> looked_;
};

v1::AcquirePermitRequest AcquireOf(RawClient& client, const std::string& key) {
  v1::AcquirePermitRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_holder_key(key);
  request.mutable_max_wait();
  return request;
}

TEST_F(SecretsTest, SessionSecretIsOnlyInLedger) {
  RawClient client = RawClient::Open(daemon_->folder());
  const Secret secret = client.credentials().secret;
  Secret near = secret;
  near.bits[3] ^= 0x10;
  const auto acquire = [&](const std::string& key) {
    return client.Call(&v1::PermitService::Stub::AcquirePermit, AcquireOf(client, key)).status();
  };
  EXPECT_TRUE(Ok(acquire("k")));
  v1::AllocateBlockRequest allocate;
  *allocate.mutable_request() = client.NextTag();
  allocate.set_bytes(4096);
  EXPECT_TRUE(Ok(client.Call(&v1::MemoryService::Stub::AllocateBlock, allocate)));
  // A nearly correct secret, which the daemon refuses and records as refused.
  Credentials wrong = client.credentials();
  wrong.secret = near;
  EXPECT_TRUE(Refused(client.CallAs(EncodeCredentials(wrong), &v1::PermitService::Stub::AcquirePermit,
                                    AcquireOf(client, "k")),
                      Reason::kBadCredentials));
  for (const Secret& tried : {secret, near}) {
    AttachSocket socket = AttachSocket::Connect(daemon_->folder());
    ASSERT_TRUE(
        Ok(socket.Send(attach::Join{.session = client.session_credentials().session.value() ^ 1, .secret = tried})));
    EXPECT_FALSE(socket.Receive<attach::Joined>().ok());
  }
  // The audit log is written asynchronously: a broker that is killed leaves out unwritten records.
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(ReadAll(daemon_->folder() + "/state/audit.jsonl"), "BAD_CREDENTIALS");
  }));
  // The next broker has the secret from the ledger, or not at all.
  daemon_->KillBroker();
  daemon_->GetNode();
  daemon_->KillSupervisor();
  RawClient later = RawClient::Open(daemon_->folder());
  EXPECT_TRUE(Eventually(
      [&] { return later.Call(&v1::SessionService::Stub::GetSession, v1::GetSessionRequest()).ok(); }));

  for (const std::string& name : Where(secret)) {
    EXPECT_TRUE(absl::StrContains(fs::path(name).filename().string(), "ledger")) << name;
    struct stat info;
    ASSERT_EQ(::stat(name.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 077, 0u) << name;
  }
  EXPECT_FALSE(Where(secret).empty()) << "it is not where it is known to be: nothing was looked at";
  EXPECT_EQ(Where(near), std::vector<std::string>());
  for (const char* const name : {"berthd", "berth-broker", "berth-launcher"}) {
    EXPECT_TRUE(looked_.contains(name)) << name;
  }
  for (const char* const file : {"/said", "/log"}) EXPECT_FALSE(ReadAll(folder_ + file).empty()) << file;
}

}  // namespace
}  // namespace berth::testing
