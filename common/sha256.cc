#include "common/sha256.h"

#include <openssl/evp.h>
#include <stdlib.h>

namespace berth {
namespace {

// Fetched once: libcrypto's lookup takes longer than the digest of a short text.
const EVP_MD* Algorithm() {
  static const EVP_MD* const kAlgorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return kAlgorithm;
}

// Without memory or the algorithm the program cannot continue.
void Must(int done) {
  if (done != 1) abort();
}

}  // namespace

Digest Sha256Of(absl::string_view bytes) {
  Digest digest;
  Must(EVP_Digest(bytes.data(), bytes.size(), digest.bits.data(), nullptr, Algorithm(), nullptr));
  return digest;
}

Sha256OfFields::Sha256OfFields() : context_(EVP_MD_CTX_new()) {
  Must(context_ == nullptr ? 0 : EVP_DigestInit_ex(context_, Algorithm(), nullptr));
}

Sha256OfFields::~Sha256OfFields() { EVP_MD_CTX_free(context_); }

Sha256OfFields& Sha256OfFields::Add(absl::string_view field) {
  Add(uint64_t{field.size()});
  Must(EVP_DigestUpdate(context_, field.data(), field.size()));
  return *this;
}

Sha256OfFields& Sha256OfFields::Add(uint64_t field) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(field >> (8 * i));
  Must(EVP_DigestUpdate(context_, bytes, sizeof(bytes)));
  return *this;
}

Digest Sha256OfFields::Finish() {
  Digest digest;
  Must(EVP_DigestFinal_ex(context_, digest.bits.data(), nullptr));
  return digest;
}

}  // namespace berth
