#include "tests/tidy/heavy_includes.h"

#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace berth {
namespace {

// The messages of protobuf itself are small, and precompiled (deploy/bazel/system.h).
bool IsHeavy(absl::string_view name) {
  const bool messages = absl::EndsWith(name, ".pb.h") && !absl::StartsWith(name, "google/protobuf/");
  return messages || absl::StartsWith(name, "grpcpp/") || absl::StartsWith(name, "CLI/");
}

// Adds to `reached` all names that the file includes, also through others.
void Reach(const IncludeGraph& graph, const std::string& file, std::set<std::string>* reached) {
  const auto found = graph.find(file);
  if (found == graph.end()) return;
  for (const std::string& name : found->second) {
    if (reached->insert(name).second) Reach(graph, name, reached);
  }
}

}  // namespace

std::map<std::string, size_t> FindHeavyHeaders(const IncludeGraph& graph) {
  std::map<std::string, size_t> headers;
  for (const auto& [file, includes] : graph) {
    if (!absl::EndsWith(file, ".cc")) continue;
    std::set<std::string> reached;
    Reach(graph, file, &reached);
    for (const std::string& name : reached) {
      if (graph.contains(name) && absl::EndsWith(name, ".h")) ++headers[name];
    }
  }
  std::erase_if(headers, [&](const auto& header) {
    std::set<std::string> reached;
    Reach(graph, header.first, &reached);
    return header.second <= kMaxSourcesOfHeavyHeader || absl::c_none_of(reached, IsHeavy);
  });
  return headers;
}

const std::map<std::string, size_t>& AcceptedHeavyHeaders() {
  static const auto* const kHeaders = new std::map<std::string, size_t>{
      {"tests/bench/echo_client.h", 8},
  };
  return *kHeaders;
}

}  // namespace berth
