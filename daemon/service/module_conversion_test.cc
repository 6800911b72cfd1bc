#include "daemon/service/module_conversion.h"

#include <string>

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);

v1::ObtainModuleRequest Valid() {
  v1::ObtainModuleRequest request;
  request.set_key(std::string(32, 'k'));
  return request;
}

std::string FieldOf(const absl::Status& status) {
  const auto details = GetErrorDetails(status);
  return details.has_value() && details->reason == Reason::kInvalidField ? details->metadata.at("field") : "";
}

TEST(ModuleConversionTest, AWaitBecomesADeadline) {
  EXPECT_EQ(FromProto(Valid(), kNow)->deadline, absl::InfiniteFuture());
  v1::ObtainModuleRequest request = Valid();
  request.mutable_max_wait();
  EXPECT_EQ(FromProto(request, kNow)->deadline, kNow);
  request.mutable_max_wait()->set_seconds(3);
  EXPECT_EQ(FromProto(request, kNow)->deadline, kNow + absl::Seconds(3));
}

TEST(ModuleConversionTest, NamesTheFieldOfABadRequest) {
  const auto refused = [](auto change) {
    v1::ObtainModuleRequest request = Valid();
    change(request);
    return FieldOf(FromProto(request, kNow).status());
  };
  EXPECT_EQ(refused([](auto& request) { request.set_key("short"); }), "key");
  EXPECT_EQ(refused([](auto& request) { request.set_key(std::string(33, 'k')); }), "key");
  EXPECT_EQ(refused([](auto& request) { request.set_label(std::string(129, 'x')); }), "label");
  EXPECT_EQ(refused([](auto& request) { request.set_architecture("a\nb"); }), "architecture");
  EXPECT_EQ(refused([](auto& request) { request.set_compiler("\xff"); }), "compiler");
  EXPECT_EQ(refused([](auto& request) { request.mutable_max_wait()->set_seconds(-1); }), "max_wait");
  EXPECT_EQ(refused([](auto& request) { request.set_distrusted_content("x"); }), "distrusted_content");
  v1::StoreModuleRequest store;
  EXPECT_EQ(FieldOf(FromProto(store).status()), "content");
}

TEST(ModuleConversionTest, ACompilersLogIsBoundedAndItsLinesStay) {
  v1::AbandonModuleRequest request;
  request.set_compile_error("line 1\nline 2");
  EXPECT_EQ(FromProto(request)->error, "line 1\nline 2");
  request.set_compile_error(std::string(10'000, 'e'));
  EXPECT_EQ(FromProto(request)->error.size(), 2'003u) << "and an ellipsis";
}

TEST(ModuleConversionTest, TheRightToCompileHasATimeAndAModuleItsDigest) {
  v1::ObtainModuleResponse right, hit;
  ToProto(core::ObtainModuleResult{.module = core::ModuleId(3), .compile = core::CompileId(4), .expires = kNow},
          &right);
  EXPECT_EQ(right.compile(), 4u);
  EXPECT_TRUE(right.has_expire_time());
  EXPECT_TRUE(right.content().empty());
  ToProto(core::ObtainModuleResult{.module = core::ModuleId(3), .bytes = Bytes(9)}, &hit);
  EXPECT_EQ(hit.compile(), 0u);
  EXPECT_EQ(hit.bytes(), 9u);
  EXPECT_FALSE(hit.has_expire_time());
  EXPECT_EQ(hit.content().size(), 32u);
}

}  // namespace
}  // namespace berth::service
