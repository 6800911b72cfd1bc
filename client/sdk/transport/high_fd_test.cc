#include "client/sdk/transport/high_fd.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

// Lowers the fd limit, and restores it at destruction.
class FdLimit {
 public:
  explicit FdLimit(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lower = {.rlim_cur = std::min(limit, before_.rlim_max), .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &lower);
  }
  ~FdLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

UniqueFd Null() { return UniqueFd(::open("/dev/null", O_RDONLY)); }

TEST(HighFdTest, HighFdNumbersFollowLimit) {
  const struct {
    rlim_t limit;
    int least;
  } rows[] = {{16, 8}, {64, 32}, {100, 50}, {128, 64}, {256, 192}, {1024, 960}, {4096, 960}, {1 << 20, 960}};
  for (const auto& row : rows) {
    const FdLimit limit(row.limit);
    EXPECT_EQ(LeastHighFd(), row.least) << row.limit;
    const UniqueFd first = MoveFarUp(Null());
    const UniqueFd second = MoveFarUp(Null());
    EXPECT_EQ(first.get(), row.least) << row.limit;
    EXPECT_EQ(second.get(), row.least + 1) << row.limit;
    EXPECT_EQ(::fcntl(first.get(), F_GETFD), FD_CLOEXEC);
  }
}

TEST(HighFdTest, FdStaysWithoutFreeHighNumber) {
  const FdLimit limit(16);
  UniqueFd taken[8];
  for (UniqueFd& fd : taken) fd = MoveFarUp(Null());
  UniqueFd fd = Null();
  const int number = fd.get();
  ASSERT_LT(number, 8);
  EXPECT_EQ(MoveFarUp(std::move(fd)).get(), number);
  EXPECT_EQ(MoveFarUp(UniqueFd()).get(), -1);
}

TEST(HighFdTest, HighFdIsNotMoved) {
  UniqueFd fd = MoveFarUp(Null());
  const int number = fd.get();
  EXPECT_EQ(MoveFarUp(std::move(fd)).get(), number);
}

}  // namespace
}  // namespace berth::internal
