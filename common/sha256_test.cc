#include "common/sha256.h"

#include <string>

#include "gtest/gtest.h"

namespace berth {
namespace {

// The examples of FIPS 180-2.
TEST(Sha256Test, DigestsMatchStandardExamples) {
  EXPECT_EQ(ToHex(Sha256Of("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(ToHex(Sha256Of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(ToHex(Sha256Of(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, AdjacentFieldsStayDistinct) {
  EXPECT_NE(Sha256OfFields().Add("ab").Add("c").Finish(), Sha256OfFields().Add("a").Add("bc").Finish());
  EXPECT_NE(Sha256OfFields().Add("").Add("a").Finish(), Sha256OfFields().Add("a").Finish());
  EXPECT_EQ(Sha256OfFields().Add("a").Add(7).Finish(), Sha256OfFields().Add("a").Add(7).Finish());
}

TEST(Sha256Test, EmptyDigestMatchesNoContent) {
  EXPECT_TRUE(Digest().empty());
  EXPECT_FALSE(Sha256Of("").empty());
  EXPECT_EQ(Sha256Of("a").bytes().size(), Digest::kBytes);
}

}  // namespace
}  // namespace berth
