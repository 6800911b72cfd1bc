// IndexedMap: a std::map with fast access to its n-th entry, for a simulation that draws one of thousands at every
// step.

#ifndef TESTS_SIM_INDEXED_MAP_H_
#define TESTS_SIM_INDEXED_MAP_H_

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace berth::core {

// The parts of std::map's interface that are used here. Iterators and references stay valid while their entry exists.
template <typename Key, typename Value>
class IndexedMap {
 public:
  using Map = std::map<Key, Value>;
  using iterator = typename Map::iterator;
  using const_iterator = typename Map::const_iterator;

  void emplace(const Key& key, Value value) {
    if (!map_.emplace(key, std::move(value)).second) return;
    keys_.insert(std::upper_bound(keys_.begin(), keys_.end(), key), key);
  }
  size_t erase(const Key& key) {
    if (map_.erase(key) == 0) return 0;
    keys_.erase(std::lower_bound(keys_.begin(), keys_.end(), key));
    return 1;
  }
  void erase(iterator at) { erase(Key(at->first)); }

  // Returns the entry that has `n` entries before it. Requires: n < size().
  iterator Nth(size_t n) { return map_.find(keys_[n]); }

  Value& at(const Key& key) { return map_.at(key); }
  const Value& at(const Key& key) const { return map_.at(key); }
  bool contains(const Key& key) const { return map_.contains(key); }
  iterator find(const Key& key) { return map_.find(key); }
  const_iterator find(const Key& key) const { return map_.find(key); }
  iterator begin() { return map_.begin(); }
  iterator end() { return map_.end(); }
  const_iterator begin() const { return map_.begin(); }
  const_iterator end() const { return map_.end(); }
  size_t size() const { return map_.size(); }
  bool empty() const { return map_.empty(); }

 private:
  Map map_;
  // The keys, in order.
  std::vector<Key> keys_;
};

}  // namespace berth::core

#endif  // TESTS_SIM_INDEXED_MAP_H_
