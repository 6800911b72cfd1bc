// Finds the headers that make many sources slow to compile: those that bring in the parser of command lines, gRPC, or
// messages of a protocol. A source that needs one of these includes it itself; a header declares what it names.

#ifndef TESTS_TIDY_HEAVY_INCLUDES_H_
#define TESTS_TIDY_HEAVY_INCLUDES_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace berth {

// Names of the files that each file includes. Our own files have their paths from the root.
using IncludeGraph = std::map<std::string, std::vector<std::string>>;

// A header that reaches a heavy one may be included by at most this many sources.
inline constexpr size_t kMaxSourcesOfHeavyHeader = 5;

// Returns the headers that reach a heavy one and that too many sources include, each with the number of those sources.
// Includes of includes count.
std::map<std::string, size_t> FindHeavyHeaders(const IncludeGraph& graph);

// The headers that are heavy for a reason, with the number of sources that include them today. A number may only become
// smaller.
const std::map<std::string, size_t>& AcceptedHeavyHeaders();

}  // namespace berth

#endif  // TESTS_TIDY_HEAVY_INCLUDES_H_
