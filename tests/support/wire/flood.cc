#include "tests/support/wire/flood.h"

#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/support/testing.h"

namespace berth::testing {

Flood Flood::Start(absl::string_view kind, const std::string& socket, int connections) {
  Flood flood(Subprocess::Start({.argv = {ProgramPath("tests/support/wire/flooder"), std::string(kind),
                                          socket, absl::StrCat(connections)}}));
  const std::string began = Must(flood.process_.ReadLine(), "flooder");
  if (began != "flooding") Fatal(absl::InternalError(began), "flooder");
  return flood;
}

Flood::Outcome Flood::Stop() {
  process_.CloseInput();
  std::istringstream words(Must(process_.ReadLine(), "flooder"));
  Outcome outcome;
  if (!(words >> outcome.opened >> outcome.ended)) Fatal(absl::InternalError(words.str()), "flooder");
  process_.Wait();
  return outcome;
}

}  // namespace berth::testing
