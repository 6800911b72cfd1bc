// berthd.sock when the kernel cannot watch one more connection: the acceptor refuses and reports the connection.
// Interposes the C library's epoll_ctl.

#include "daemon/service/transport/acceptor.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/os/unique_fd.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/service/transport/connection_table.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace {

// While true, no more fds can be watched.
std::atomic<bool> g_full = false;

}  // namespace

extern "C" int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  static auto* const next = reinterpret_cast<int (*)(int, int, int, epoll_event*)>(::dlsym(RTLD_NEXT, "epoll_ctl"));
  if (g_full && operation == EPOLL_CTL_ADD) {
    errno = ENOSPC;
    return -1;
  }
  return next(epoll, operation, fd, event);
}

namespace berth::service {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

class AcceptorTest : public testing::Test {
 protected:
  AcceptorTest() {
    char folder[] = "/tmp/berth-acceptor-XXXXXX";
    folder_ = ::mkdtemp(folder);
    audit_ = std::make_unique<AuditLog>(AuditLog::Options{.folder = folder_});
    loop_ = EventLoop::Create().value();
    loop_->SetTimerCallback([] {});
    acceptor_ = std::make_unique<Acceptor>(loop_.get(), &gate_, &connections_, [this](int fd) {
      handed_over_.emplace_back(fd);
      ++count_;
    });
    acceptor_->SetAuditLog(audit_.get());
    // An abstract address, which is in no file system.
    const std::string path = absl::StrCat("berth-acceptor-test-", ::getpid());
    address_.sun_family = AF_UNIX;
    memcpy(address_.sun_path + 1, path.data(), path.size());
    address_size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
    UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address_), address_size_), 0);
    EXPECT_EQ(::listen(listener.get(), 16), 0);
    EXPECT_TRUE(acceptor_->Listen(std::move(listener), Peer::Role::kTenant).ok());
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~AcceptorTest() override {
    g_full = false;
    loop_->Stop();
    thread_.join();
    acceptor_.reset();
    audit_.reset();
    std::filesystem::remove_all(folder_);
  }

  UniqueFd Connect() const {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), address_size_), 0);
    return socket;
  }
  // Waits for the connection's end.
  static bool Ends(int socket) {
    pollfd entry = {.fd = socket, .events = POLLRDHUP, .revents = 0};
    return ::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) == 1;
  }

  std::string folder_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<EventLoop> loop_;
  AcceptGate gate_{AcceptRates()};
  ConnectionTable connections_{ConnectionLimits()};
  // Used on the loop's thread, except for their number.
  std::vector<UniqueFd> handed_over_;
  std::atomic<int> count_ = 0;
  std::unique_ptr<Acceptor> acceptor_;
  std::thread thread_;
  sockaddr_un address_ = {};
  socklen_t address_size_ = 0;
};

TEST_F(AcceptorTest, UnwatchableConnectionIsRejectedAndRecorded) {
  g_full = true;
  EXPECT_TRUE(Ends(Connect().get()));
  g_full = false;
  EXPECT_EQ(count_, 0);
  audit_->Flush(kPatience);
  std::ifstream file(folder_ + "/audit.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line)) << "nothing is on record";
  const nlohmann::json record = nlohmann::json::parse(line);
  EXPECT_EQ(record["what"], "connect") << line;
  EXPECT_EQ(record["outcome"], "refused") << line;
  EXPECT_EQ(record["who"]["pid"], ::getpid()) << line;
  // The next connection is accepted.
  const UniqueFd next = Connect();
  const absl::Time deadline = absl::Now() + kPatience;
  while (count_ == 0 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(count_, 1);
}

}  // namespace
}  // namespace berth::service
