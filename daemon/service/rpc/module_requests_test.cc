#include "berth/v1/module.pb.h"
#include "daemon/service/rpc/module_requests.h"

#include <string>

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::service {
namespace {

using Obtain = RpcTraits<core::ObtainModuleRequest>;
using Store = RpcTraits<core::StoreModuleRequest>;
using Abandon = RpcTraits<core::AbandonModuleRequest>;

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

TEST(ModuleRequestsTest, WaitBecomesDeadline) {
  EXPECT_EQ(Obtain::Decode(Valid(), kNow)->deadline, absl::InfiniteFuture());
  v1::ObtainModuleRequest request = Valid();
  request.mutable_max_wait();
  EXPECT_EQ(Obtain::Decode(request, kNow)->deadline, kNow);
  request.mutable_max_wait()->set_seconds(3);
  EXPECT_EQ(Obtain::Decode(request, kNow)->deadline, kNow + absl::Seconds(3));
}

TEST(ModuleRequestsTest, InvalidRequestNamesField) {
  const auto refused = [](auto change) {
    v1::ObtainModuleRequest request = Valid();
    change(request);
    return FieldOf(Obtain::Decode(request, kNow).status());
  };
  EXPECT_EQ(refused([](auto& request) { request.set_key("short"); }), "key");
  EXPECT_EQ(refused([](auto& request) { request.set_key(std::string(33, 'k')); }), "key");
  EXPECT_EQ(refused([](auto& request) { request.set_architecture("a\nb"); }), "architecture");
  EXPECT_EQ(refused([](auto& request) { request.set_compiler("\xff"); }), "compiler");
  EXPECT_EQ(refused([](auto& request) { request.mutable_max_wait()->set_seconds(-1); }), "max_wait");
  EXPECT_EQ(refused([](auto& request) { request.set_distrusted_content("x"); }), "distrusted_content");
  v1::StoreModuleRequest store;
  EXPECT_EQ(FieldOf(Store::Decode(store, kNow).status()), "content");
}

TEST(ModuleRequestsTest, CompilerLogIsBoundedAndRetainsLines) {
  v1::AbandonModuleRequest request;
  request.set_compile_error("line 1\nline 2");
  EXPECT_EQ(Abandon::Decode(request, kNow)->error, "line 1\nline 2");
  request.set_compile_error(std::string(10'000, 'e'));
  EXPECT_EQ(Abandon::Decode(request, kNow)->error.size(), 2'003u) << "and an ellipsis";
}

TEST(ModuleRequestsTest, CompileRightHasExpiryAndModuleItsDigest) {
  v1::ObtainModuleResponse right, hit;
  Obtain::Encode(
      core::ObtainModuleResult{.module = core::ModuleId(3), .compile = core::CompileId(4), .expires = kNow},
      &right);
  EXPECT_EQ(right.compile(), 4u);
  EXPECT_TRUE(right.has_expire_time());
  EXPECT_TRUE(right.content().empty());
  Obtain::Encode(core::ObtainModuleResult{.module = core::ModuleId(3), .bytes = Bytes(9)}, &hit);
  EXPECT_EQ(hit.compile(), 0u);
  EXPECT_EQ(hit.bytes(), 9u);
  EXPECT_FALSE(hit.has_expire_time());
  EXPECT_EQ(hit.content().size(), 32u);
}

}  // namespace
}  // namespace berth::service
