// Floods a socket of the daemon, mostly with HTTP/2, as fast as one thread can, until its standard input ends.
//
//   flooder KIND SOCKET CONNECTIONS
//
//   resets        calls that are reset before their request is sent
//   calls         calls that are reset after their request is sent
//   strangers     calls of an unknown method, reset
//   pings, settings, windows, empty-data
//                 frames that belong to no call
//   continuations a header block without an end
//   deaf          calls that are answered, from a client that grants no window and reads nothing
//   silent        nothing
//   half          half of the preface
//   connects      connections that end at once, one after the other
//
// A connection that the daemon closes is opened again at once. Prints "flooding" when it has begun, and at the end how
// many connections were opened, and how many of those the daemon ended.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/os/unique_fd.h"
#include "tests/support/wire/http2.h"

namespace berth::testing {
namespace {

using http2::FrameType;

constexpr char kMethod[] = "/berth.v1.NodeService/GetNode";
constexpr char kNoMethod[] = "/berth.v1.NodeService/GetNothing";
// Bytes generated at a time, all sent before more are generated.
constexpr size_t kBatchBytes = 64 * 1024;
constexpr uint32_t kLastStream = 0x7fff'ff00;

enum class Kind {
  kResets,
  kCalls,
  kStrangers,
  kPings,
  kSettings,
  kWindows,
  kEmptyData,
  kContinuations,
  kDeaf,
  kSilent,
  kHalf,
  kConnects,
};

std::optional<Kind> KindOf(const std::string& name) {
  static const auto* const kKinds = new std::map<std::string, Kind>{
      {"resets", Kind::kResets},     {"calls", Kind::kCalls},
      {"strangers", Kind::kStrangers}, {"pings", Kind::kPings},
      {"settings", Kind::kSettings}, {"windows", Kind::kWindows},
      {"empty-data", Kind::kEmptyData}, {"continuations", Kind::kContinuations},
      {"deaf", Kind::kDeaf},         {"silent", Kind::kSilent},
      {"half", Kind::kHalf},         {"connects", Kind::kConnects}};
  const auto kind = kKinds->find(name);
  return kind == kKinds->end() ? std::nullopt : std::optional(kind->second);
}

struct Connection {
  UniqueFd socket;
  // Bytes to send, from `sent` on.
  std::string bytes;
  size_t sent = 0;
  uint32_t stream = 1;
  bool first_call = true;
};

class Flooder {
 public:
  Flooder(Kind kind, const std::string& socket)
      : kind_(kind), path_(socket), type_(socket.ends_with("attach.sock") ? SOCK_SEQPACKET : SOCK_STREAM) {}

  // Connects where that is possible now.
  void Open(Connection& connection) {
    connection = Connection();
    UniqueFd socket(::socket(AF_UNIX, type_ | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path_.c_str(), std::min(path_.size() + 1, sizeof(address.sun_path) - 1));
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) return;
    connection.socket = std::move(socket);
    ++opened_;
    if (kind_ == Kind::kSilent || kind_ == Kind::kConnects) return;
    connection.bytes = http2::Preface(kind_ == Kind::kDeaf ? 0 : 65'535);
    if (kind_ == Kind::kHalf) connection.bytes.resize(connection.bytes.size() / 2);
  }

  // Sends and reads as much as is possible without waiting. Returns whether any byte moved.
  bool Push(Connection& connection) {
    if (!connection.socket) Open(connection);
    if (!connection.socket) return false;
    if (kind_ == Kind::kConnects) {
      connection.socket.reset();
      return true;
    }
    bool went = false;
    if (kind_ != Kind::kDeaf && !Drain(connection, &went)) return true;
    if (connection.sent == connection.bytes.size()) Refill(connection);
    if (connection.sent == connection.bytes.size()) return went;
    const ssize_t size = ::send(connection.socket.get(), connection.bytes.data() + connection.sent,
                                connection.bytes.size() - connection.sent, MSG_NOSIGNAL);
    if (size > 0) {
      connection.sent += static_cast<size_t>(size);
      return true;
    }
    if (errno != EAGAIN) HungUp(connection);
    return went;
  }

  uint64_t opened() const { return opened_; }
  uint64_t ended() const { return ended_; }

 private:
  bool Drain(Connection& connection, bool* went) {
    char bytes[65'536];
    ssize_t size;
    while ((size = ::recv(connection.socket.get(), bytes, sizeof(bytes), 0)) > 0) *went = true;
    if (size < 0 && errno == EAGAIN) return true;
    HungUp(connection);
    return false;
  }

  void HungUp(Connection& connection) {
    ++ended_;
    connection.socket.reset();
  }

  void Refill(Connection& connection) {
    connection.bytes.clear();
    connection.sent = 0;
    if (kind_ == Kind::kSilent || kind_ == Kind::kHalf) return;
    while (connection.bytes.size() < kBatchBytes) {
      if (connection.stream >= kLastStream) return HungUp(connection);
      Append(connection);
    }
  }

  void Append(Connection& connection) {
    std::string& bytes = connection.bytes;
    switch (kind_) {
      case Kind::kResets:
      case Kind::kCalls:
      case Kind::kStrangers:
      case Kind::kDeaf:
        return AppendCall(connection);
      case Kind::kPings:
        bytes += http2::Frame(FrameType::kPing, 0, 0, "12345678");
        return;
      case Kind::kSettings:
        bytes += http2::Frame(FrameType::kSettings, 0, 0, "");
        return;
      case Kind::kWindows:
        bytes += http2::Frame(FrameType::kWindowUpdate, 0, 0, std::string("\0\0\0\1", 4));
        return;
      case Kind::kEmptyData:
        if (connection.first_call) AppendHeaders(connection);
        bytes += http2::Frame(FrameType::kData, 0, connection.stream, "");
        return;
      case Kind::kContinuations:
        if (connection.first_call) {
          bytes += http2::Frame(FrameType::kHeaders, 0, connection.stream, http2::CallHeaders(kMethod, true));
          connection.first_call = false;
        }
        bytes += http2::Frame(FrameType::kContinuation, 0, connection.stream, "");
        return;
      case Kind::kSilent:
      case Kind::kHalf:
      case Kind::kConnects:
        return;
    }
  }

  void AppendHeaders(Connection& connection) {
    const char* const method = kind_ == Kind::kStrangers ? kNoMethod : kMethod;
    connection.bytes += http2::Frame(FrameType::kHeaders, http2::kEndHeaders, connection.stream,
                                     http2::CallHeaders(method, connection.first_call));
    connection.first_call = false;
  }

  void AppendCall(Connection& connection) {
    AppendHeaders(connection);
    if (kind_ == Kind::kCalls || kind_ == Kind::kDeaf) {
      connection.bytes +=
          http2::Frame(FrameType::kData, http2::kEndStream, connection.stream, http2::EmptyMessage());
    }
    if (kind_ != Kind::kDeaf) connection.bytes += http2::Reset(connection.stream);
    connection.stream += 2;
  }

  const Kind kind_;
  const std::string path_;
  const int type_;
  uint64_t opened_ = 0;
  uint64_t ended_ = 0;
};

int Run(Kind kind, const std::string& socket, size_t count) {
  ::signal(SIGPIPE, SIG_IGN);
  Flooder flooder(kind, socket);
  std::vector<Connection> connections(count);
  for (Connection& connection : connections) flooder.Open(connection);
  std::cout << "flooding" << std::endl;
  while (true) {
    bool went = false;
    for (Connection& connection : connections) went = flooder.Push(connection) || went;
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    // Waits where nothing could be sent, so that the thread does not spin.
    if (::poll(&input, 1, went ? 0 : 1) > 0) break;
  }
  std::cout << flooder.opened() << " " << flooder.ended() << std::endl;
  return 0;
}

}  // namespace
}  // namespace berth::testing

int main(int argc, char** argv) {
  const auto kind = argc == 4 ? berth::testing::KindOf(argv[1]) : std::nullopt;
  if (!kind.has_value()) {
    std::cerr << "usage: see tests/support/wire/flooder.cc\n";
    return 2;
  }
  return berth::testing::Run(*kind, argv[2], static_cast<size_t>(std::atoi(argv[3])));
}
