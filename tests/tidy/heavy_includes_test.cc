#include "tests/tidy/heavy_includes.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// A graph in which `sources` sources include a.h, and that includes b.h, which includes `name`.
IncludeGraph GraphOf(size_t sources, const std::string& name) {
  IncludeGraph graph = {{"a.h", {"vector", "b.h"}}, {"b.h", {name}}};
  for (size_t i = 0; i < sources; ++i) graph[absl::StrCat(i, ".cc")] = {"a.h"};
  return graph;
}

TEST(HeavyIncludesTest, HeavyHeaderOfManySourcesIsFound) {
  const struct {
    const char* name;
    bool heavy;
  } kCases[] = {
      {"berth/v1/permit.pb.h", true},
      {"berth/v1/permit.grpc.pb.h", true},
      {"google/rpc/status.pb.h", true},
      {"grpcpp/support/status.h", true},
      {"CLI/CLI.hpp", true},
      {"google/protobuf/timestamp.pb.h", false},
      {"absl/status/status.h", false},
      {"berth/v1/permit.proto", false},
      {"daemon/core/core.h", false},
  };
  for (const auto& [name, heavy] : kCases) {
    using Found = std::map<std::string, size_t>;
    EXPECT_EQ(FindHeavyHeaders(GraphOf(6, name)), heavy ? Found({{"a.h", 6}, {"b.h", 6}}) : Found()) << name;
    EXPECT_EQ(FindHeavyHeaders(GraphOf(5, name)), Found()) << name;
  }
}

TEST(HeavyIncludesTest, CircleEnds) {
  IncludeGraph graph = GraphOf(6, "a.h");
  EXPECT_TRUE(FindHeavyHeaders(graph).empty());
  graph["b.h"].push_back("CLI/App.hpp");
  EXPECT_EQ(FindHeavyHeaders(graph).size(), 2u);
}

TEST(HeavyIncludesTest, SourceMayIncludeHeavyHeader) {
  EXPECT_TRUE(FindHeavyHeaders({{"a.cc", {"a.h", "CLI/CLI.hpp"}}, {"a.h", {}}}).empty());
}

}  // namespace
}  // namespace berth
