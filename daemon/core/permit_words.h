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

  // A step begins. Within one a word that was lent is not lent again, so that it says what became of that permit until
  // it is written down.
  void BeginStep() { ended_.clear(); }

  // Lets the process keep `permit`. Returns its word, which says USED; null if it has none, or keeps another.
  PermitWord* Lend(ChannelId channel, PermitId permit) {
    if (ended_.contains(channel)) return nullptr;
    PermitWord* const word = LendAgain(channel);
    if (word != nullptr) word->Lend(permit.value());
    return word;
  }
  // The same for what an earlier broker lent: the word is as it is.
  PermitWord* LendAgain(ChannelId channel) {
    PermitWord* const word = find_ == nullptr || lent_.contains(channel) ? nullptr : find_(channel);
    if (word != nullptr) lent_.insert(channel);
    return word;
  }
  // The process keeps nothing any more; the word says so already where the permit was taken back. Requires: `word` is
  // what Lend() returned.
  void End(ChannelId channel, PermitWord* word) {
    word->SetWaiting(false);
    lent_.erase(channel);
    ended_.insert(channel);
  }

 private:
  const FindPermitWord find_;
  std::set<ChannelId> lent_;
  std::set<ChannelId> ended_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMIT_WORDS_H_
