// UserTurns: queued items of users, taken from each user in turn, and in order for each user. However many items one
// user queues, another user waits for only one of them.

#ifndef DAEMON_BROKER_USER_TURNS_H_
#define DAEMON_BROKER_USER_TURNS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

namespace berth {

// Thread-compatible.
template <typename Thing>
class UserTurns {
 public:
  void Push(uint32_t user, Thing thing) {
    users_[user].push_back(std::move(thing));
    ++size_;
  }
  // Takes the first item of the user after the one served last; nullopt if no item waits.
  std::optional<Thing> Take() {
    if (users_.empty()) return std::nullopt;
    auto at = users_.upper_bound(last_);
    if (at == users_.end()) at = users_.begin();
    last_ = at->first;
    Thing thing = std::move(at->second.front());
    at->second.pop_front();
    if (at->second.empty()) users_.erase(at);
    --size_;
    return thing;
  }
  // Drops the user's items for which `condition` holds.
  template <typename Condition>
  void DropIf(uint32_t user, Condition condition) {
    const auto at = users_.find(user);
    if (at == users_.end()) return;
    size_ -= std::erase_if(at->second, condition);
    if (at->second.empty()) users_.erase(at);
  }
  template <typename Condition>
  bool HasIf(uint32_t user, Condition condition) const {
    const auto at = users_.find(user);
    return at != users_.end() && std::any_of(at->second.begin(), at->second.end(), condition);
  }

  size_t CountOf(uint32_t user) const {
    const auto at = users_.find(user);
    return at == users_.end() ? 0 : at->second.size();
  }
  size_t size() const { return size_; }
  bool empty() const { return users_.empty(); }

 private:
  // Queues of the users that have items.
  std::map<uint32_t, std::deque<Thing>> users_;
  uint32_t last_ = 0;
  size_t size_ = 0;
};

}  // namespace berth

#endif  // DAEMON_BROKER_USER_TURNS_H_
