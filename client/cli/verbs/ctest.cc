#include <stdlib.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/cli/device_name.h"
#include "client/cli/run/ctest_resources.h"
#include "client/cli/run/run_command.h"
#include "client/cli/verbs.h"
#include "common/concurrency_limit.h"
#include "common/os/whole_file.h"
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

ExitStatus WriteSpec(const Globals& globals, const SpecOptions& options) {
  return Inspect(globals, /*admin=*/false, [&](const Inspector& inspector) -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(const v1::ListPoolsResponse pools, inspector.ListPools());
    BERTH_ASSIGN_OR_RETURN(v1::ListDevicesResponse devices, inspector.ListDevices());
    BERTH_RETURN_IF_ERROR(RetainVisible(&devices));
    for (const v1::Pool& pool : pools.pools()) {
      if (pool.name() != options.pool) continue;
      BERTH_ASSIGN_OR_RETURN(const std::string spec, MakeCtestSpec(devices, pool));
      if (!options.output.empty()) return WriteWholeFile(options.output, spec, 0666);
      Print(spec);
      return absl::OkStatus();
    }
    return absl::NotFoundError(absl::StrCat("no permit pool ", options.pool, ": `berth status` lists the pools"));
  });
}

std::optional<std::string> Variable(const std::string& name) {
  const char* const value = ::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Fills `request` from the slots that CTest gave the test: the number of units, and the devices.
absl::Status Take(const CtestSlots& slots, bool any_device, const std::shared_ptr<Session>& session,
                  PermitRequest* request) {
  if (any_device) {
    // The members of a gang are alike: request as many devices as CTest gave, and for each the largest number of slots
    // given on any of them.
    request->gpus = slots.size();
    for (const auto& [id, count] : slots) request->units = std::max(request->units, count);
    return absl::OkStatus();
  }
  BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, Inspector(session).ListDevices());
  std::map<std::string, std::string> uuids;
  for (const v1::Device& device : devices.devices()) uuids[CtestId(device.uuid())] = device.uuid();
  for (const auto& [id, count] : slots) {
    if (!uuids.contains(id)) {
      return absl::NotFoundError(absl::StrCat(
          "CTest gave device ", id, ", which this node does not have: write the file again with `berth ctest-spec`"));
    }
    request->placed[uuids[id]] = count;
  }
  return absl::OkStatus();
}

// CTest determines the amounts, and the devices unless any device will do. Conflicting options are rejected, not
// ignored.
absl::Status CheckLeftToCtest(const CtestRunOptions& options) {
  const PermitRequest& request = options.run.request;
  const std::vector<std::pair<absl::string_view, bool>> given = {
      {"--gpus", request.gpus > 0},
      {"--permits", request.units != PermitRequest().units},
      {"--device", !options.any_device && !request.device.empty()},
      {"--min-capability", !options.any_device && !request.min_capability.empty()},
      {"--devices", !options.any_device && !request.among.empty()},
      {"--island-of", !options.any_device && !request.island_of.empty()}};
  for (const auto& [name, is_given] : given) {
    if (is_given)
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": not allowed here, as CTest assigns the devices and their number"));
  }
  return absl::OkStatus();
}

ExitStatus RunTest(const Globals& globals, CtestRunOptions& options) {
  const absl::StatusOr<std::optional<CtestSlots>> slots = ReadCtestSlots(&Variable);
  if (!slots.ok()) {
    return DidNotRun(options.run, FailedToAcquire(slots.status(), options.run.request));
  }
  if (slots->has_value()) {
    if (const absl::Status left = CheckLeftToCtest(options); !left.ok()) {
      Report(left);
      return DidNotRun(options.run, {.code = kUsage, .not_run = "usage"});
    }
    options.run.complete = [slots = **slots, any = options.any_device](
                               const std::shared_ptr<Session>& session, PermitRequest* request) {
      return Take(slots, any, session, request);
    };
  }
  return RunCommand(globals, options.run);
}

}  // namespace

void AddCtestSpec(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand(
      "ctest-spec", "Write CTest's resource specification, for tests with RESOURCE_GROUPS \"gpus:1\"");
  const auto options = std::make_shared<SpecOptions>();
  verb.AddOption("--pool", &options->pool, "The pool whose cap is the sum of the slots (default: gpu-tests)");
  verb.AddOption("--output", &options->output, "The file to write (default: standard output)");
  verb.Runs([&globals, options] { return WriteSpec(globals, *options); });
}

void AddCtestRun(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand(
      "ctest-run",
      "Run one of CTest's tests while it holds the devices that CTest assigned: berth ctest-run -- COMMAND "
      "[ARGUMENTS]...");
  const auto options = std::make_shared<CtestRunOptions>();
  verb.AddFlag("--any-device", &options->any_device, "Take as many slots as CTest assigned, on any device");
  AddRunOptions(verb, globals, &options->run, [&globals, options] { return RunTest(globals, *options); });
}

}  // namespace berth::cli
