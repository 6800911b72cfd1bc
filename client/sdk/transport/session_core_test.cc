// SessionCore with a daemon that ends: the test is the daemon.

#include "client/sdk/transport/session_core.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <berth/error.h>
#include <berth/ids.h>
#include <berth/session_options.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "common/wire/state_page.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr uint64_t kSession = 7;
constexpr uint64_t kChannel = 8;

class SessionCoreTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/berth-session-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    // The session looks whether it may connect; these tests make no gRPC calls.
    std::ofstream(folder_ + "/berthd.sock") << "";
    sockaddr_un address = {.sun_family = AF_UNIX};
    const std::string path = folder_ + "/attach.sock";
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    memcpy(address.sun_path, path.data(), path.size());
    listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0)
        << strerror(errno);
    ASSERT_EQ(::listen(listener_.get(), 16), 0);
    page_ = CreateStatePage().value();
  }
  ~SessionCoreTest() override {
    // Closes the session while its sockets are open: it would wait for the next daemon otherwise.
    core_.reset();
    std::filesystem::remove_all(folder_);
  }

  static bool IsReadable(int fd) {
    pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) == 1;
  }
  // Receives the client's next message, which must be a T.
  template <typename T>
  static T Receive(int socket) {
    T result;
    absl::StatusOr<Message> message = absl::DeadlineExceededError("nothing came");
    if (IsReadable(socket)) message = ReceiveMessage(socket);
    EXPECT_TRUE(message.ok()) << message.status();
    if (!message.ok()) return result;
    EXPECT_EQ(message->bytes.size(), sizeof(T));
    if (message->bytes.size() == sizeof(T)) memcpy(&result, message->bytes.data(), sizeof(T));
    return result;
  }
  // Accepts the next connection, and receives its first message.
  template <typename T>
  std::pair<UniqueFd, T> Accept() {
    EXPECT_TRUE(IsReadable(listener_.get())) << "no client connects";
    UniqueFd socket;
    if (IsReadable(listener_.get())) socket.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(socket);
    T message = socket ? Receive<T>(socket.get()) : T();
    return {std::move(socket), std::move(message)};
  }
  // Accepts the next Rejoin, which must be of this channel, or of the lifeline with 0.
  UniqueFd AcceptRejoin(uint64_t channel) {
    auto [socket, rejoin] = Accept<attach::Rejoin>();
    EXPECT_EQ(rejoin.session, kSession);
    EXPECT_EQ(rejoin.channel, channel);
    return std::move(socket);
  }
  void Answer(const UniqueFd& socket, uint64_t channel) {
    const int page = page_.get();
    EXPECT_TRUE(SendStruct(socket.get(), attach::Joined{.channel = channel}, {&page, 1}).ok());
  }

  void Open() {
    std::thread daemon([this] {
      lifeline_ = Accept<attach::Hello>().first;
      const UniqueFd credentials =
          WriteSessionCredentials({.session = SessionId(kSession), .folder = folder_}).value();
      const int fd = credentials.get();
      EXPECT_TRUE(SendStruct(lifeline_.get(), attach::Welcome{}, {&fd, 1}).ok());
      channel_ = Accept<attach::Join>().first;
      Answer(channel_, kChannel);
    });
    absl::StatusOr<std::shared_ptr<SessionCore>> core =
        SessionCore::Open({.folder = folder_, .always_new = true, .timeout = kPatience});
    daemon.join();
    ASSERT_TRUE(core.ok()) << core.status();
    core_ = *std::move(core);
  }
  // Ends the daemon with all its sockets. The listening socket is the next daemon's.
  void EndDaemon() {
    lifeline_.reset();
    channel_.reset();
  }
  // Expects the channel to be in use by the client, and both sockets to end with the session.
  void ExpectResumed() {
    ASSERT_TRUE(SendStruct(channel_.get(),
                           attach::Delivery{.what = attach::DeliveryKind::kRecall, .number = 1, .block = 99})
                    .ok());
    EXPECT_EQ(Receive<attach::Ack>(channel_.get()).number, 1u);
    EXPECT_TRUE(core_->Check().ok()) << core_->Check();
    core_.reset();
    for (const UniqueFd* const socket : {&lifeline_, &channel_}) {
      ASSERT_TRUE(IsReadable(socket->get()));
      EXPECT_TRUE(IsEndOfStream(ReceiveMessage(socket->get()).status()));
    }
  }

  std::string folder_;
  UniqueFd listener_;
  UniqueFd page_;
  UniqueFd lifeline_;
  UniqueFd channel_;
  std::shared_ptr<SessionCore> core_;
};

TEST_F(SessionCoreTest, SessionResumesWithNextDaemon) {
  ASSERT_NO_FATAL_FAILURE(Open());
  EndDaemon();
  lifeline_ = AcceptRejoin(0);
  Answer(lifeline_, 0);
  channel_ = AcceptRejoin(kChannel);
  Answer(channel_, kChannel);
  ExpectResumed();
}

TEST_F(SessionCoreTest, LifelineLostAfterItsAnswerIsConnectedAgain) {
  ASSERT_NO_FATAL_FAILURE(Open());
  EndDaemon();
  // The broker dies before the fd store has the lifeline. The next broker answers for the channel.
  Answer(AcceptRejoin(0), 0);
  channel_ = AcceptRejoin(kChannel);
  Answer(channel_, kChannel);
  lifeline_ = AcceptRejoin(0);
  Answer(lifeline_, 0);
  ExpectResumed();
}

TEST_F(SessionCoreTest, LifelineIsConnectedAfterRefusalForEarlierOne) {
  ASSERT_NO_FATAL_FAILURE(Open());
  EndDaemon();
  Answer(AcceptRejoin(0), 0);
  channel_ = AcceptRejoin(kChannel);
  Answer(channel_, kChannel);
  // The daemon has not noticed yet that the earlier connection ended.
  const UniqueFd early = AcceptRejoin(0);
  EXPECT_TRUE(SendStruct(early.get(), attach::Refused{.code = static_cast<int32_t>(absl::StatusCode::kInvalidArgument),
                                                      .reason = static_cast<int32_t>(Reason::kInvalidField)})
                  .ok());
  lifeline_ = AcceptRejoin(0);
  Answer(lifeline_, 0);
  ExpectResumed();
}

TEST_F(SessionCoreTest, LifelineLostWhileChannelSurvivesIsConnectedAgain) {
  ASSERT_NO_FATAL_FAILURE(Open());
  lifeline_.reset();
  ASSERT_TRUE(SendStruct(channel_.get(), attach::Resumed()).ok());
  lifeline_ = AcceptRejoin(0);
  Answer(lifeline_, 0);
  ExpectResumed();
}

TEST_F(SessionCoreTest, DeniedUserLearnsGroupWithAccess) {
  constexpr gid_t kGroup = 65'532;
  if (::geteuid() != 0 || ::chown(folder_.c_str(), 0, kGroup) != 0) GTEST_SKIP() << "needs root: changes users";
  const auto open_as_other = [&] {
    EXPECT_EQ(::setresuid(65'533, 65'533, 0), 0);
    const absl::Status denied = SessionCore::Open({.folder = folder_, .always_new = true}).status();
    EXPECT_EQ(::setresuid(0, 0, 0), 0);
    EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
    return std::string(denied.message());
  };
  ASSERT_EQ(::chmod(folder_.c_str(), 0750), 0);
  EXPECT_TRUE(absl::EndsWith(open_as_other(), "Permission denied; the members of group 65532 have access"));
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  EXPECT_TRUE(absl::EndsWith(open_as_other(), "Permission denied"));
}

}  // namespace
}  // namespace berth::internal
