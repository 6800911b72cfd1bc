// Probe: one shared way for all modules of a program to obtain a device.
//
//   auto prober = berth::Prober::Create(session);
//   auto probed = prober->Probe("sphere");
//   if (!probed.ok()) return probed.status();           // a device that does not work
//   if (!probed->present()) return RunOnTheCpu(probed->absence().why);
//   Launch(probed->value().stream->cuda_stream());
//
//   // The same, followed by a step of the module's own, usually a compilation (berth/module.h):
//   auto backend = berth::ProbeAndBuild(*prober, "sphere", [&](const berth::ProbedDevice& device) {
//     return SphereBackend::Make(device);               // absl::StatusOr<SphereBackend>
//   });
//
// All labels get the same device; each error carries the label of its caller. The prober caches its results, failures
// for a shorter time, and probes again when they expire. If many threads request a device, one of them probes and the
// others wait for its result. So a process initialises the driver once, and retains a device's primary context before
// it creates anything else there. A device whose driver hangs delays only the callers that request this device.

#ifndef BERTH_PROBE_H_
#define BERTH_PROBE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <berth/device_policy.h>
#include <berth/probed_device.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth {

namespace cuda {
class Driver;
}  // namespace cuda
namespace v1 {
class DeviceInventory;
}  // namespace v1

struct ProberOptions {
  DevicePolicy policy = DevicePolicy::kAuto;
  // Whether to accept a device made of host memory, as on test and simulated nodes: its stream runs functions. If
  // false, such devices are skipped, and a node without other devices counts as having none.
  bool host_devices = false;
  // How long the result stays valid if the probe found a device that works.
  absl::Duration cache_success = absl::Minutes(1);
  // How long the result stays valid if the probe found no device, or a device that does not work.
  absl::Duration cache_failure = absl::Seconds(5);
  // How long a call waits for another thread's probe, then fails with kDeadlineExceeded. A driver may hang, and a
  // thread inside it cannot be interrupted.
  absl::Duration patience = absl::Seconds(30);
};

// The device to probe. If neither field is set: the best device that this process can use, by the daemon's score when
// the prober first chose. The choice stays the same as long as that device serves.
struct ProbeTarget {
  // The daemon's ordinal; ignored where `device_uuid` is set.
  std::optional<uint32_t> device;
  // A UUID, a unique prefix of one, or the digits of an ordinal. Empty: by `device`.
  std::string device_uuid;
};

namespace internal {

// The sources that a prober reads: the daemon, the driver and a steady clock (common/steady_clock.h).
struct ProbeSources {
  // Lists the devices, by ordinal.
  std::function<absl::StatusOr<std::vector<v1::DeviceInventory>>()> devices;
  std::function<absl::StatusOr<cuda::Driver*>()> driver;
  std::function<absl::Time()> now;
};

// Returns `status` with the label added to its named values.
absl::Status WithLabel(absl::Status status, absl::string_view label);
// Returns the label as shown to other users (common/label.h). Errors: INVALID_FIELD for an empty label.
absl::StatusOr<std::string> CleanLabel(absl::string_view label);

// Makes the stream's context current in the thread until the end of the scope.
class StreamScope {
 public:
  static absl::StatusOr<StreamScope> Enter(const ProbedStream& stream);
  StreamScope(StreamScope&&) noexcept;
  StreamScope& operator=(StreamScope&&) = delete;
  ~StreamScope();

 private:
  struct State;
  explicit StreamScope(std::unique_ptr<State> state);
  // Null on a host device.
  std::unique_ptr<State> state_;
};

}  // namespace internal

// Thread-safe. Streams obtained from a prober remain valid after its destruction.
class Prober {
 public:
  // With DevicePolicy::kOff `session` may be null.
  static std::shared_ptr<Prober> Create(std::shared_ptr<Session> session, const ProberOptions& options = {});
  // For internal use by the SDK.
  Prober(internal::ProbeSources sources, const ProberOptions& options);
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;
  ~Prober();

  // Finds a device and verifies that it works: creates a context, reads the device's properties, synchronises a stream.
  // The label names the caller. Every error carries ToLabel() of it as the named value `label`.
  // Errors, as refusals with the named values `label`, `ordinal` (the daemon's; if a device was chosen) and `why`:
  //   NO_RUNTIME "{label} backend: no CUDA runtime available" for an absence although a device is required, with the
  //     named value `absence` (AbsenceName()). Host memory is no device unless ProberOptions::host_devices accepts it;
  //     the reason for the absence is then the one that prevents this process from using CUDA;
  //   DRIVER or DEVICE_STOPPED "{label} backend: failed to create CUDA context for device {ordinal}";
  //   DRIVER also if the device's stream fails;
  //   NOT_FOUND if the requested device does not exist; INVALID_FIELD for an empty label.
  // A daemon that does not answer (kUnavailable, kDeadlineExceeded) is reported as it is, after the label.
  // kDeadlineExceeded is also returned if another thread probes the same device, or starts the driver, for longer than
  // ProberOptions::patience.
  absl::StatusOr<OrAbsent<ProbedDevice>> Probe(absl::string_view label, const ProbeTarget& target = {});
  // As Probe(), but uses no result of a probe that began before the call.
  absl::StatusOr<OrAbsent<ProbedDevice>> ProbeAgain(absl::string_view label, const ProbeTarget& target = {});

  // Number of probes that this prober has made; calls that the cache answered are not counted.
  uint64_t looks() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

// Probes, then calls `build` to make the caller's object from the device, with the device's context current in the
// thread. `build(const ProbedDevice&)` returns an absl::StatusOr. `build` is not called if the probe finds no device.
// Its errors pass through, with the label added to their named values.
template <typename Build>
auto ProbeAndBuild(Prober& prober, absl::string_view label, Build build, const ProbeTarget& target = {})
    -> absl::StatusOr<OrAbsent<typename std::invoke_result_t<Build, const ProbedDevice&>::value_type>> {
  using Built = typename std::invoke_result_t<Build, const ProbedDevice&>::value_type;
  const absl::StatusOr<OrAbsent<ProbedDevice>> probed = prober.Probe(label, target);
  if (!probed.ok()) return probed.status();
  if (!probed->present()) return OrAbsent<Built>(probed->absence());
  absl::StatusOr<internal::StreamScope> scope = internal::StreamScope::Enter(*probed->value().stream);
  if (!scope.ok()) return internal::WithLabel(scope.status(), label);
  absl::StatusOr<Built> built = build(static_cast<const ProbedDevice&>(probed->value()));
  if (!built.ok()) return internal::WithLabel(built.status(), label);
  return OrAbsent<Built>(*std::move(built));
}

}  // namespace berth

#endif  // BERTH_PROBE_H_
