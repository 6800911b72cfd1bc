#include "client/testing/permit_fixture.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/testing/environment.h"
#include "common/label.h"

namespace berth::testing {

void PermitTest::SetUp() {
  const Environment* const environment = Environment::Get();
  ASSERT_NE(environment, nullptr) << "berth::testing::Install() was not called before RUN_ALL_TESTS()";
  if (environment->session() == nullptr)
    GTEST_SKIP() << "needs a Berth daemon: " << environment->status().message();
  PermitOptions wanted = options();
  if (wanted.label.empty()) {
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    wanted.label = ToLabel(absl::StrCat(test.test_suite_name(), ".", test.name()));
  }
  absl::StatusOr<Permit> permit = Permit::Acquire(environment->session(), wanted);
  ASSERT_TRUE(permit.ok()) << "no permit: " << permit.status().message();
  permit_.emplace(*std::move(permit));
}

void PermitTest::TearDown() {
  if (!permit_.has_value()) return;
  const absl::Status released = permit_->Release();
  permit_.reset();
  EXPECT_TRUE(released.ok()) << released.message();
}

const std::shared_ptr<Session>& PermitTest::session() const { return Environment::Get()->session(); }

}  // namespace berth::testing
