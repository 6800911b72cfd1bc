#include "tests/support/actor/actor_wire.h"

#include <gtest/gtest.h>

#include <berth/error.h>

#include "tests/support/testing.h"

namespace berth::testing {
namespace {

TEST(ActorWireTest, AnswerIsDecodedUnchanged) {
  EXPECT_EQ(Must(DecodeAnswer(EncodeAnswer("two words"))), "two words");
  EXPECT_EQ(Must(DecodeAnswer(EncodeAnswer(""))), "");
}

TEST(ActorWireTest, RefusalIsDecodedWithMetadata) {
  const absl::Status refusal =
      Refuse(Reason::kNotFound, "no {kind}\n\tcalled {id}", {{"kind", "pool"}, {"id", "a=b\tc"}});
  const std::string line = EncodeAnswer(refusal);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_TRUE(Refused(DecodeAnswer(line), Reason::kNotFound, {{"kind", "pool"}, {"id", "a=b\tc"}}));
}

TEST(ActorWireTest, ErrorWithoutReasonIsDecoded) {
  EXPECT_EQ(DecodeAnswer(EncodeAnswer(absl::AbortedError("why"))).status(), absl::AbortedError("why"));
}

TEST(ActorWireTest, InvalidAnswerIsAnError) {
  for (const char* const line : {"", "nonsense", "error", "error\tx\ty", "error\t5\ttext\tNO_SUCH_REASON"}) {
    EXPECT_TRUE(absl::IsInternal(DecodeAnswer(line).status())) << line;
  }
}

}  // namespace
}  // namespace berth::testing
