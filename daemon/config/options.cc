#include "daemon/config/options.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <concepts>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <berth/ids.h>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/command_line.h"
#include "common/label.h"
#include "common/terminal_text.h"
#include "common/time_span.h"
#include "daemon/base/stderr_log.h"

namespace berth {
namespace {

const std::map<std::string, Role>& Roles() {
  static const auto* const kRoles = new std::map<std::string, Role>{
      {"vault", Role::kSupervisor},    {"broker", Role::kBroker},
      {"worker", Role::kWorker},       {"context-worker", Role::kContextWorker},
      {"inventory", Role::kInventory}, {"clears-check", Role::kMemoryScrubCheck},
      {"monitor", Role::kMonitor},     {"self-test", Role::kSelfTest}};
  return *kRoles;
}

const std::map<std::string, BackendChoice>& Backends() {
  static const auto* const kBackends = new std::map<std::string, BackendChoice>{
      {"auto", BackendChoice::kAuto}, {"host", BackendChoice::kHost}, {"cuda", BackendChoice::kCuda}};
  return *kBackends;
}

absl::string_view NameOf(BackendChoice backend) {
  for (const auto& [name, value] : Backends()) {
    if (value == backend) return name;
  }
  return "auto";
}

// CLI11 requires errors as exceptions.
[[noreturn]] void Reject(const std::string& option, const std::string& text, absl::string_view expected) {
  throw CLI::ValidationError(option, absl::StrCat("\"", text, "\" is not ", expected));
}

BackendChoice ReadBackend(const std::string& option, const std::string& text) {
  const auto found = Backends().find(text);
  if (found == Backends().end()) Reject(option, text, "one of auto, host and cuda");
  return found->second;
}

Bytes ReadBytes(const std::string& option, const std::string& text) {
  const absl::StatusOr<Bytes> bytes = ParseBytes(text);
  if (!bytes.ok()) throw CLI::ValidationError(option, std::string(bytes.status().message()));
  return *bytes;
}

absl::Duration ReadDuration(const std::string& option, const std::string& text) {
  const absl::StatusOr<absl::Duration> duration = ParseTimeSpan(text);
  if (!duration.ok()) throw CLI::ValidationError(option, std::string(duration.status().message()));
  return *duration;
}

// As ReadDuration(), for the deadline of driver calls.
absl::Duration ReadCallDeadline(const std::string& option, const std::string& text) {
  const absl::Duration duration = ReadDuration(option, text);
  if (duration < kLeastCallDeadline) {
    Reject(option, text,
           absl::StrCat("a time of at least ", absl::FormatDuration(kLeastCallDeadline), ", such as 10s"));
  }
  return duration;
}

// Checks a whole number. The library's own checks name no limit, or the largest double in 309 digits.
template <std::integral Number>
CLI::Validator From(Number least, Number most = std::numeric_limits<Number>::max()) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        Number value = 0;
        if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) return std::string();
        return absl::StrCat("\"", text, "\" is not a whole number from ", least, " to ", most);
      },
      "");
}

// Parses "NAME=CAP", split at the last "=".
std::pair<std::string, uint64_t> ReadPool(const std::string& text) {
  const size_t at = text.rfind('=');
  const std::string name = text.substr(0, at);
  const std::string cap = at == std::string::npos ? "" : text.substr(at + 1);
  uint64_t number = 0;
  const bool digits = !cap.empty() && cap.find_first_not_of("0123456789") == std::string::npos;
  if (name.empty() || !ValidateLabel("pool", name).ok() || !digits || !absl::SimpleAtoi(cap, &number) || number == 0) {
    Reject("--pool", ToLabel(text), "NAME=CAP with a cap of at least 1");
  }
  return {name, number};
}

// The working folder may be moved or deleted while the daemon runs.
void MakeAbsolute(std::string* path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(*path, error);
  if (!path->empty() && !error) *path = absolute.string();
}

}  // namespace

std::optional<int> ParseOptions(int argc, const char* const* argv, Options* options) {
  options->folder = DefaultFolder();
  CLI::App app("berthd: leases a GPU node's permits and memory to its processes.", "berthd");
  app.option_defaults()->always_capture_default();
  app.add_option("--folder", options->folder,
                 "The folder of the daemon's sockets (default: $BERTH_FOLDER; root: /run/berth; others: "
                 "$XDG_RUNTIME_DIR/berth)")
      ->option_text("TEXT");
  app.add_option("--client-group", options->client_group,
                 "The group, by name or number, that may lease from root's daemon; without such a group: root alone");
  app.add_option("--observer-group", options->observer_group,
                 "The group, by name or number, that may read everything on observer.sock; without such a group: this "
                 "user");
  app.add_option_function<std::string>(
         "--backend", [&](const std::string& text) { options->backend = ReadBackend("--backend", text); },
         "The memory of blocks: cuda, host, or auto: cuda if a libcuda.so.1 is installed, else host")
      ->option_text("TEXT=auto");
  app.add_option("--host-devices", options->host_devices, "Devices of host memory, 1 to 64, if there is no GPU")
      ->take_last()
      ->check(From(1u, kMaxDeviceOrdinals))
      ->option_text("UINT=1");
  app.add_option_function<std::string>(
      "--host-bytes", [&](const std::string& text) { options->host_bytes = ReadBytes("--host-bytes", text); },
      "Bytes of a host device, e.g. 4GiB (default: half of the available bytes, at most 8GiB)");
  app.add_option(
      "--host-devices-file", options->host_devices_file,
      "A file that describes host devices as GPUs (docs/guides/simulated_nodes.md); replaces --host-devices");
  app.add_flag(
      "--clears-check,!--no-clears-check", options->memory_scrub_check,
      "Check before GPUs are shared that the driver clears memory, and measure the bytes of a context (default: on); "
      "takes a second, and 1.5GiB of each GPU for that time");
  app.add_option("--config", options->config, "The configuration file (default: none)");
  app.add_option(
      "--state", options->state,
      "The folder of data that outlives the daemon (default: $BERTH_STATE, $STATE_DIRECTORY, or state in the "
      "folder of the sockets)");
  app.add_option_function<std::vector<std::string>>(
         "--pool",
         [&](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             const auto [name, cap] = ReadPool(text);
             options->pools[name] = cap;
           }
         },
         "NAME=CAP: the cap of a pool; may be repeated")
      ->allow_extra_args(false);
  app.add_option_function<std::string>(
      "--device-budget",
      [&](const std::string& text) { options->device_budget = ReadBytes("--device-budget", text); },
      "The budget of every device (default: the smaller of its free and half of its total bytes)");
  app.add_option("--warm-blocks", options->warm_blocks, "Blocks made in advance, per size and device")
      ->check(From(0u));
  app.add_option("--streams-per-device", options->streams_per_device,
                 "The most streams of a process on a device, besides the default stream; at least 1")
      ->check(From(1u))
      ->option_text("UINT");
  app.add_option_function<std::string>(
      "--call-deadline",
      [&](const std::string& text) { options->call_deadline = ReadCallDeadline("--call-deadline", text); },
      "The time after which a worker's driver call counts as hanging, e.g. 10s; at least 500ms");
  app.add_option_function<std::string>(
      "--context-idle", [&](const std::string& text) { options->context_idle = ReadDuration("--context-idle", text); },
      "The time after which an unneeded context worker ends, e.g. 30s");
  app.add_option("--max-connections", options->max_connections, "The most gRPC connections of clients; at least 1")
      ->check(From(1u))
      ->option_text("UINT");
  app.add_option("--ready-fd", options->ready_fd,
                 "The fd to which the daemon writes \"ready\" and a line end once it serves (default: none)")
      ->check(From(0))
      ->option_text("INT");
  app.add_flag("--version", options->version, "Print the version and the build's features");
  // Internal options between the daemon's processes.
  app.add_option("--role", options->role, "")->transform(CLI::CheckedTransformer(Roles()))->group("");
  app.add_option("--device", options->device, "")->check(From(0u, kMaxDeviceOrdinals - 1))->group("");
  app.add_option("--device-uuid", options->device_uuid, "")->group("");
  app.add_option("--broker-fd", options->broker_fd, "")->group("");
  app.add_flag("--renew", options->renew, "")->group("");
  app.add_option("--program", options->program, "")->group("");
  app.add_option("--parent", options->parent, "")->group("");
  for (CLI::Option* const option : app.get_options()) {
    option->check(option->get_items_expected_max() == 0 ? CheckFlag : CheckNotBlank);
  }
  try {
    app.parse(WordsForParser(argc, argv, [&app](const std::string& name) { return IsFlag(app, name); }));
  } catch (const CLI::ParseError& error) {
    // The parser has a code for each mistake, and 0 for help.
    std::ostringstream out, err;
    const bool answered = app.exit(error, out, err) == 0;
    std::cout << ToTerminal(out.str());
    StderrLog().Write(ToTerminal(WithArguments(app, err.str())));
    return answered ? 0 : 1;
  }
  MakeAbsolute(&options->folder);
  if (options->state.empty()) options->state = DefaultState(options->folder);
  for (std::string* const path : {&options->state, &options->config, &options->host_devices_file}) MakeAbsolute(path);
  return std::nullopt;
}

std::vector<std::string> FlagsForChildren(const Options& options) {
  std::vector<std::string> flags = {
      absl::StrCat("--folder=", options.folder),
      absl::StrCat("--state=", options.state),
      absl::StrCat("--client-group=", options.client_group),
      absl::StrCat("--observer-group=", options.observer_group),
      absl::StrCat("--backend=", NameOf(options.backend)),
      absl::StrCat("--host-devices=", options.host_devices),
      absl::StrCat("--host-bytes=", options.host_bytes.count()),
  };
  if (!options.host_devices_file.empty()) {
    flags.push_back(absl::StrCat("--host-devices-file=", options.host_devices_file));
  }
  if (!options.memory_scrub_check) flags.push_back("--no-clears-check");
  if (options.warm_blocks.has_value()) flags.push_back(absl::StrCat("--warm-blocks=", *options.warm_blocks));
  if (options.streams_per_device.has_value()) {
    flags.push_back(absl::StrCat("--streams-per-device=", *options.streams_per_device));
  }
  if (options.call_deadline.has_value()) {
    flags.push_back(absl::StrCat("--call-deadline=", absl::FormatDuration(*options.call_deadline)));
  }
  if (options.context_idle.has_value()) {
    flags.push_back(absl::StrCat("--context-idle=", absl::FormatDuration(*options.context_idle)));
  }
  if (options.max_connections.has_value()) {
    flags.push_back(absl::StrCat("--max-connections=", *options.max_connections));
  }
  if (!options.config.empty()) flags.push_back(absl::StrCat("--config=", options.config));
  for (const auto& [name, cap] : options.pools) flags.push_back(absl::StrCat("--pool=", name, "=", cap));
  if (options.device_budget.has_value()) {
    flags.push_back(absl::StrCat("--device-budget=", options.device_budget->count()));
  }
  return flags;
}

std::string DefaultState(const std::string& folder) {
  if (const char* const state = getenv("BERTH_STATE"); state != nullptr && *state != '\0') return state;
  if (const char* const state = getenv("STATE_DIRECTORY"); state != nullptr && *state != '\0') {
    // For a service with several folders, the first.
    return std::string(state, strcspn(state, ":"));
  }
  return absl::StrCat(folder, "/state");
}

std::string DefaultFolder() {
  if (const char* const folder = getenv("BERTH_FOLDER"); folder != nullptr && *folder != '\0') return folder;
  if (::geteuid() == 0) return "/run/berth";
  const char* const runtime = getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && *runtime != '\0' ? absl::StrCat(runtime, "/berth") : "";
}

}  // namespace berth
