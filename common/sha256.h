// SHA-256, computed by the system's libcrypto.

#ifndef COMMON_SHA256_H_
#define COMMON_SHA256_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/digest.h"

struct evp_md_ctx_st;

namespace berth {

Digest Sha256Of(absl::string_view bytes);

// Hashes a sequence of fields, each prefixed by its length, so that adjacent fields cannot run together. The result is
// not the digest of the concatenation. Thread-compatible.
class Sha256OfFields {
 public:
  Sha256OfFields();
  Sha256OfFields(const Sha256OfFields&) = delete;
  Sha256OfFields& operator=(const Sha256OfFields&) = delete;
  ~Sha256OfFields();

  Sha256OfFields& Add(absl::string_view field);
  Sha256OfFields& Add(uint64_t field);
  // Returns the digest. Call once.
  Digest Finish();

 private:
  evp_md_ctx_st* const context_;
};

}  // namespace berth

#endif  // COMMON_SHA256_H_
