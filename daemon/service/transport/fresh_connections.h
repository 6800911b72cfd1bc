// FreshConnections: connections that have not identified their role yet, up to a limit. Each costs a file descriptor.
// Past the limit the oldest connection of the user with the most must end, so a flood affects only its own user.

#ifndef DAEMON_SERVICE_TRANSPORT_FRESH_CONNECTIONS_H_
#define DAEMON_SERVICE_TRANSPORT_FRESH_CONNECTIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace berth::service {

// Thread-compatible.
template <typename Connection>
class FreshConnections {
 public:
  // Number of a connection; numbers rise.
  using Number = uint64_t;

  explicit FreshConnections(size_t most) : most_(most) {}

  // Adds a connection and returns its number.
  Number Add(uint32_t uid, Connection connection) {
    by_uid_[uid].emplace(++last_, std::move(connection));
    ++size_;
    return last_;
  }
  // Removes a connection; a missing one is no error.
  void Remove(uint32_t uid, Number number) {
    const auto of_uid = by_uid_.find(uid);
    if (of_uid == by_uid_.end() || of_uid->second.erase(number) == 0) return;
    --size_;
    if (of_uid->second.empty()) by_uid_.erase(of_uid);
  }
  // Returns the connection to end, if there are too many.
  std::optional<Connection> Surplus() const {
    if (size_ <= most_) return std::nullopt;
    auto worst = by_uid_.begin();
    for (auto it = by_uid_.begin(); it != by_uid_.end(); ++it) {
      if (it->second.size() > worst->second.size()) worst = it;
    }
    return worst->second.begin()->second;
  }

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [uid, connections] : by_uid_) {
      for (const auto& [number, connection] : connections) visit(connection);
    }
  }

 private:
  const size_t most_;
  Number last_ = 0;
  size_t size_ = 0;
  // Oldest first; only users with connections.
  std::map<uint32_t, std::map<Number, Connection>> by_uid_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TRANSPORT_FRESH_CONNECTIONS_H_
