#include "common/cuda/nvrtc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"

namespace berth::cuda {
namespace {

using ::testing::HasSubstr;

constexpr char kSource[] = "extern \"C\" __global__ void add(float* x) { x[threadIdx.x] += 1; }";

// NVRTC needs no GPU, only its library.
class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status status = Compile(kSource, "compute_80").status();
    if (IsRefusal(status, Reason::kUnsupported)) GTEST_SKIP() << status;
  }
};

TEST_F(NvrtcTest, MakesPtx) {
  const absl::StatusOr<std::string> ptx = Compile(kSource, "compute_80");
  ASSERT_TRUE(ptx.ok()) << ptx.status();
  EXPECT_THAT(*ptx, HasSubstr(".entry add"));
}

TEST_F(NvrtcTest, MakesCubins) {
  const absl::StatusOr<std::string> cubin = Compile(kSource, "sm_80");
  ASSERT_TRUE(cubin.ok()) << cubin.status();
  EXPECT_EQ(cubin->substr(1, 3), "ELF");
}

TEST_F(NvrtcTest, ASourceThatDoesNotCompileIsRefusedWithTheLog) {
  const absl::Status status = Compile("int x = ;", "compute_80").status();
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField));
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected an expression"));
}

TEST_F(NvrtcTest, AnUnknownArchitectureIsAnError) {
  EXPECT_TRUE(IsRefusal(Compile(kSource, "compute_1").status(), Reason::kDriver));
}

}  // namespace
}  // namespace berth::cuda
