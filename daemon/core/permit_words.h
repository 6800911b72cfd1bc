// PermitWords: which process keeps a permit between its uses, and where it says so (common/permit_word.h). A process
// has one word, so it keeps one permit, of whatever pool.

#ifndef DAEMON_CORE_PERMIT_WORDS_H_
#define DAEMON_CORE_PERMIT_WORDS_H_

#include <functional>
#include <set>
#include <utility>

#include "common/ids.h"
#include "common/permit_word.h"

namespace berth::core {

// Finds the word of the process behind a channel; null where it has no page. It stays where it is until the page is
// dropped (effects.h).
using FindPermitWord = std::function<PermitWord*(ChannelId)>;

// Thread-compatible, but for the words.
class PermitWords {
 public:
  // Without `find` nobody keeps anything.
  explicit PermitWords(FindPermitWord find = nullptr) : find_(std::move(find)) {}

  // Lets the process keep `permit`. Returns its word, which says USED; null if it has none, or keeps another.
  PermitWord* Lend(ChannelId channel, PermitId permit) {
    PermitWord* const word = find_ == nullptr || lent_.contains(channel) ? nullptr : find_(channel);
    if (word == nullptr) return nullptr;
    lent_.insert(channel);
    word->Lend(permit.value());
    return word;
  }
  // The process keeps nothing any more. Requires: `word` is what Lend() returned.
  void End(ChannelId channel, PermitWord* word) {
    word->Clear();
    word->SetWaiting(false);
    lent_.erase(channel);
  }

 private:
  const FindPermitWord find_;
  std::set<ChannelId> lent_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMIT_WORDS_H_
