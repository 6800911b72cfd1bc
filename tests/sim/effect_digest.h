// EffectDigest: a hash over the effects of a run, to compare two versions of the core by the same seeds. It covers the
// number, kind and values of every effect in order, and of a refusal the code, the reason and the named values. Texts
// for people and the names of types have no part in it, so that rewording and renaming keep the hash.

#ifndef TESTS_SIM_EFFECT_DIGEST_H_
#define TESTS_SIM_EFFECT_DIGEST_H_

#include <string>

#include "absl/strings/string_view.h"
#include "common/sha256.h"
#include "daemon/core/types/effects.h"

namespace berth::core {

// Thread-compatible.
class EffectDigest {
 public:
  void Add(const Effect& effect);
  // Adds a batch of changed ledger records to a second hash. Records hold the texts of cached answers.
  void AddRecords(absl::string_view batch) { records_.Add(batch); }
  // Return the hashes in hexadecimal. Call each once.
  std::string Effects() { return ToHex(effects_.Finish()); }
  std::string Records() { return ToHex(records_.Finish()); }

 private:
  Sha256OfFields effects_;
  Sha256OfFields records_;
};

}  // namespace berth::core

#endif  // TESTS_SIM_EFFECT_DIGEST_H_
