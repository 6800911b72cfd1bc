#include "common/cuda/nvrtc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <berth/error.h>

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

TEST_F(NvrtcTest, NvrtcCompilesPtx) {
  const absl::StatusOr<std::string> ptx = Compile(kSource, "compute_80");
  ASSERT_TRUE(ptx.ok()) << ptx.status();
  EXPECT_THAT(*ptx, HasSubstr(".entry add"));
}

TEST_F(NvrtcTest, NvrtcCompilesCubin) {
  const absl::StatusOr<std::string> cubin = Compile(kSource, "sm_80");
  ASSERT_TRUE(cubin.ok()) << cubin.status();
  EXPECT_EQ(cubin->substr(1, 3), "ELF");
}

TEST_F(NvrtcTest, InvalidSourceIsRejectedWithLog) {
  const absl::Status status = Compile("int x = ;", "compute_80").status();
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField));
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected an expression"));
}

TEST_F(NvrtcTest, NvrtcAcceptsOptions) {
  const absl::StatusOr<std::string> ptx =
      Compile("extern \"C\" __global__ void KERNEL() {}", "compute_80", {"-DKERNEL=named"});
  ASSERT_TRUE(ptx.ok()) << ptx.status();
  EXPECT_THAT(*ptx, HasSubstr(".entry named"));
}

TEST_F(NvrtcTest, ReportsItsVersion) {
  const absl::StatusOr<std::string> version = NvrtcVersion();
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_THAT(*version, ::testing::StartsWith("NVRTC 1"));
}

TEST_F(NvrtcTest, LongLogIsCutBetweenCharacters) {
  std::string source;
  for (int i = 0; i < 100; ++i) source += "int \u00f6" + std::to_string(i) + " = ;\n";
  const absl::Status status = Compile(source, "compute_80").status();
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField));
  EXPECT_LT(status.message().size(), 2'200u);
}

TEST_F(NvrtcTest, UnknownArchitectureIsAnError) {
  EXPECT_TRUE(IsRefusal(Compile(kSource, "compute_1").status(), Reason::kDriver));
}

}  // namespace
}  // namespace berth::cuda
