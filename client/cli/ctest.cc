#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cli/ctest_resources.h"
#include "client/cli/run_command.h"
#include "client/cli/verbs.h"
#include "common/concurrency_limit.h"
#include "common/os_error.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

struct SpecOptions {
  std::string pool = kDefaultPool;
  std::string output;
};

struct CtestRunOptions {
  RunOptions run;
  bool any_device = false;
};

// Writes a file that is there whole or not at all: several runs may write one and read it.
absl::Status WriteWhole(const std::string& path, const std::string& text) {
  const std::string unfinished = absl::StrCat(path, ".", ::getpid());
  FILE* const file = ::fopen(unfinished.c_str(), "we");
  if (file == nullptr) return OsError(unfinished, errno);
  const bool written = ::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = ::fclose(file) == 0;
  if (written && closed && ::rename(unfinished.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  ::unlink(unfinished.c_str());
  return OsError(path, error);
}

ExitStatus WriteSpec(const Globals& globals, const SpecOptions& options) {
  return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
    BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, inspector.ListDevices());
    for (const v1::Pool& pool : pools.pools()) {
      if (pool.name() != options.pool) continue;
      BERTH_ASSIGN_OR_RETURN(const std::string spec, MakeCtestSpec(devices, pool.cap()));
      if (!options.output.empty()) return WriteWhole(options.output, spec);
      ::fputs(spec.c_str(), stdout);
      return absl::OkStatus();
    }
    return absl::NotFoundError(absl::StrCat("no permit pool ", options.pool));
  });
}

std::optional<std::string> Variable(const std::string& name) {
  const char* const value = ::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Wishes for what CTest has given the test: so many units, on those devices.
absl::Status Take(const CtestSlots& slots, bool any_device, const std::shared_ptr<Session>& session,
                  PermitWish* wish) {
  if (any_device) {
    // A gang's members are alike: as many devices, and of each the most that one was to have.
    wish->gpus = slots.size();
    for (const auto& [id, count] : slots) wish->units = std::max(wish->units, count);
    return absl::OkStatus();
  }
  BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, Inspector(session).ListDevices());
  std::map<std::string, std::string> uuids;
  for (const v1::Device& device : devices.devices()) uuids[CtestId(device.uuid())] = device.uuid();
  for (const auto& [id, count] : slots) {
    if (!uuids.contains(id)) {
      return absl::NotFoundError(absl::StrCat(
          "CTest gave device ", id, ", which is not here: write the file of `berth ctest-spec` again"));
    }
    wish->placed[uuids[id]] = count;
  }
  return absl::OkStatus();
}

// CTest says how much, and on which devices unless any will do: what says otherwise is refused, not passed over.
absl::Status CheckLeftToCtest(const CtestRunOptions& options) {
  const PermitWish& wish = options.run.wish;
  const std::vector<std::pair<absl::string_view, bool>> given = {
      {"--gpus", wish.gpus > 0},
      {"--permits", wish.units != PermitWish().units},
      {"--device", !options.any_device && !wish.device.empty()},
      {"--min-capability", !options.any_device && !wish.min_capability.empty()},
      {"--island-of", !options.any_device && !wish.island_of.empty()}};
  for (const auto& [name, is_given] : given) {
    if (is_given) return absl::InvalidArgumentError(absl::StrCat(name, ": CTest has said that for this test"));
  }
  return absl::OkStatus();
}

ExitStatus RunTest(const Globals& globals, CtestRunOptions& options) {
  const absl::StatusOr<std::optional<CtestSlots>> slots = ReadCtestSlots(&Variable);
  if (!slots.ok()) return FailedToAcquire(slots.status(), options.run.wish);
  if (slots->has_value()) {
    if (const absl::Status left = CheckLeftToCtest(options); !left.ok()) {
      Report(left);
      return {.code = kUsage};
    }
    options.run.complete = [slots = **slots, any = options.any_device](
                               const std::shared_ptr<Session>& session, PermitWish* wish) {
      return Take(slots, any, session, wish);
    };
  }
  return RunCommand(globals, options.run);
}

}  // namespace

void AddCtestSpec(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand(
      "ctest-spec",
      "Write CTest's resource specification: what tests may ask for as RESOURCE_GROUPS \"gpus:1\"");
  const auto options = std::make_shared<SpecOptions>();
  verb->add_option("--pool", options->pool, "The pool whose cap the slots add up to (default: gpu-tests)");
  verb->add_option("--output", options->output, "Write it to this file (default: to standard output)");
  verb->callback([&globals, chosen, options] {
    *chosen = [&globals, options] { return WriteSpec(globals, *options); };
  });
}

void AddCtestRun(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand(
      "ctest-run",
      "Run a test of CTest's while holding what CTest gave it: berth ctest-run -- COMMAND [ARGUMENTS]...");
  const auto options = std::make_shared<CtestRunOptions>();
  verb->add_flag("--any-device", options->any_device,
                 "As many slots as CTest gave, on whichever device has them");
  AddRunOptions(verb, globals, &options->run, chosen,
                [&globals, options] { return RunTest(globals, *options); });
}

}  // namespace berth::cli
