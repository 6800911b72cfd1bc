#include "common/concurrency_limit.h"

#include <stdlib.h>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(ConcurrencyLimitTest, LimitIsTrimmedUnsignedAndAtLeastOne) {
  struct Row {
    const char* text;
    uint64_t limit;
  };
  const Row rows[] = {
      {"1", 1},
      {"4", 4},
      {" 8\t\n", 8},
      {"0", 1},
      {"", 2},
      {"  ", 2},
      {"-1", 2},
      {"-0", 2},
      {"two", 2},
      {"3.0", 2},
      {"4 5", 2},
      {"0x4", 2},
      {"4k", 2},
      {"007", 7},
      {"18446744073709551615", UINT64_MAX},
      {"18446744073709551616", 2},
  };
  for (const Row& row : rows) EXPECT_EQ(ParseConcurrency(row.text), row.limit) << '"' << row.text << '"';
}

TEST(ConcurrencyLimitTest, OwnVariablePrecedesAlias) {
  ::unsetenv(kConcurrencyVariable);
  ::unsetenv(kConcurrencyAlias);
  EXPECT_EQ(ConcurrencyFromEnvironment(), std::nullopt);
  ::setenv(kConcurrencyAlias, "5", 1);
  EXPECT_EQ(ConcurrencyFromEnvironment(), 5u);
  ::setenv(kConcurrencyVariable, "nonsense", 1);
  EXPECT_EQ(ConcurrencyFromEnvironment(), 2u) << "set, although it does not parse";
  ::unsetenv(kConcurrencyVariable);
  ::unsetenv(kConcurrencyAlias);
}

}  // namespace
}  // namespace berth
