#include "tests/bench/peers/redis_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth::bench {

absl::StatusOr<RedisClient> RedisClient::Connect(int port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return OsError("socket", errno);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) < 0) {
    return OsError("connect(redis)", errno);
  }
  const int one = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return RedisClient(std::move(socket));
}

absl::StatusOr<std::string> RedisClient::Call(const std::vector<std::string>& command) {
  std::string text = absl::StrCat("*", command.size(), "\r\n");
  for (const std::string& word : command) absl::StrAppend(&text, "$", word.size(), "\r\n", word, "\r\n");
  if (::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) {
    return OsError("send(redis)", errno);
  }
  return ReadReply();
}

absl::Status RedisClient::Fill() {
  char bytes[4096];
  const ssize_t got = ::recv(socket_.get(), bytes, sizeof(bytes), 0);
  if (got == 0) return absl::UnavailableError("redis closed the connection");
  if (got < 0) return OsError("recv(redis)", errno);
  unread_.append(bytes, static_cast<size_t>(got));
  return absl::OkStatus();
}

absl::StatusOr<std::string> RedisClient::ReadLine() {
  size_t end;
  while ((end = unread_.find("\r\n")) == std::string::npos) BERTH_RETURN_IF_ERROR(Fill());
  std::string line = unread_.substr(0, end);
  unread_.erase(0, end + 2);
  return line;
}

absl::StatusOr<std::string> RedisClient::ReadReply() {
  BERTH_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  if (line.empty()) return absl::InternalError("an empty answer");
  const std::string rest = line.substr(1);
  if (line[0] == '-') return absl::InternalError(rest);
  if (line[0] == '+' || line[0] == ':') return rest;
  int64_t size = 0;
  if (!absl::SimpleAtoi(rest, &size)) return absl::InternalError(line);
  if (size < 0) return std::string();
  if (line[0] == '*') {
    std::string last;
    for (int64_t i = 0; i < size; ++i) {
      BERTH_ASSIGN_OR_RETURN(last, ReadReply());
    }
    return last;
  }
  const size_t bytes = static_cast<size_t>(size);
  while (unread_.size() < bytes + 2) BERTH_RETURN_IF_ERROR(Fill());
  std::string text = unread_.substr(0, bytes);
  unread_.erase(0, bytes + 2);
  return text;
}

}  // namespace berth::bench
