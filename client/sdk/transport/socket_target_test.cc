#include "client/sdk/transport/socket_target.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(SocketTargetTest, PathIsPercentEncoded) {
  struct Row {
    const char* path;
    const char* uri;
  };
  for (const Row& row : {Row{"/run/berth/berthd.sock", "unix:/run/berth/berthd.sock"},
                         Row{"/a-b_c.d~e/s", "unix:/a-b_c.d~e/s"},
                         Row{"/feature%2Ffix/s", "unix:/feature%252Ffix/s"},
                         Row{"/a b?c#d:e@f/s", "unix:/a%20b%3Fc%23d%3Ae%40f/s"},
                         Row{"/\n\xff[x]/s", "unix:/%0A%FF%5Bx%5D/s"},
                         Row{"//a//b/s", "unix:/a//b/s"},
                         Row{"///a/s", "unix:/a/s"}}) {
    const SocketTarget target(row.path);
    EXPECT_EQ(target.uri(), row.uri);
    EXPECT_FALSE(target.has_fd()) << row.path;
  }
}

class CommaTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(parent_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(parent_); }
  void Make() const {
    std::filesystem::create_directory(folder());
    std::ofstream(folder() + "/s") << "there";
  }
  std::string folder() const { return parent_ + "/a,b"; }

  std::string parent_ = "/tmp/berth-target-XXXXXX";
};

TEST_F(CommaTest, FdFollowsFolder) {
  const SocketTarget early(folder() + "/s");
  Make();
  const SocketTarget target(folder() + "/s");
  const auto is_there = [](const SocketTarget& one) {
    EXPECT_TRUE(one.has_fd());
    EXPECT_FALSE(absl::StrContains(one.uri(), ",")) << one.uri();
    return std::filesystem::exists(std::string(absl::StripPrefix(one.uri(), "unix:")));
  };
  EXPECT_TRUE(is_there(target));
  std::filesystem::remove_all(folder());
  EXPECT_FALSE(is_there(target));
  // Without the folder, the fd remains what it is.
  target.Refresh();
  EXPECT_FALSE(is_there(target));
  Make();
  for (const SocketTarget* const one : {&target, &early}) {
    EXPECT_FALSE(is_there(*one));
    one->Refresh();
    EXPECT_TRUE(is_there(*one));
  }
}

}  // namespace
}  // namespace berth::internal
