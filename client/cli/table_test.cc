#include "client/cli/table.h"

#include "gtest/gtest.h"

namespace berth::cli {
namespace {

TEST(TableTest, ColumnsAreAlignedAndLinesEndWithoutSpaces) {
  Table table({{"POOL"}, {"OUT", Table::Align::kRight}, {"LABEL"}});
  table.AddRow({"gpu-tests", "2", "train"});
  table.AddRow({"x", "1024", ""});
  EXPECT_EQ(table.Format(),
            "POOL        OUT  LABEL\n"
            "gpu-tests     2  train\n"
            "x          1024  -\n");
}

TEST(TableTest, WidthIsCountedInCharacters) {
  Table table({{"A"}, {"B"}});
  table.AddRow({"größe", "1"});
  table.AddRow({"12345", "2"});
  EXPECT_EQ(table.Format(), "A      B\ngröße  1\n12345  2\n");
}

TEST(TableTest, EmptyTableHasTitles) {
  const Table table({{"POOL"}, {"CAP"}});
  EXPECT_TRUE(table.empty());
  EXPECT_EQ(table.Format(), "POOL  CAP\n");
}

}  // namespace
}  // namespace berth::cli
