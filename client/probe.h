// Probe: one way for every module of a program to come by a device, instead of one each.
//
//   auto prober = berth::Prober::Create(session);
//   auto probed = prober->Probe("sphere");
//   if (!probed.ok()) return probed.status();           // a device that does not work
//   if (!probed->present()) return RunOnTheCpu(probed->absence().why);
//   Launch(probed->value().stream->cuda_stream());
//
//   // The same, and then a step of the module's own, as a rule to compile (client/module.h):
//   auto backend = berth::ProbeAndBuild(*prober, "sphere", [&](const berth::ProbedDevice& device) {
//     return SphereBackend::Make(device);               // absl::StatusOr<SphereBackend>
//   });
//
// All labels are given the same device; each is in the errors that it gets. What was found is kept for a while,
// failures too, for a shorter one; then it is looked at anew. However many threads ask for a device, one looks at it,
// and the others wait for what it finds: the driver is initialised once in a process, and a device's primary context is
// the first thing that is made of it. A device whose driver hangs delays those alone who ask for it.

#ifndef CLIENT_PROBE_H_
#define CLIENT_PROBE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/device_policy.h"
#include "client/probed_device.h"
#include "client/session.h"
#include "common/error.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/steady_cond_var.h"

namespace berth {

namespace cuda {
class Driver;
}  // namespace cuda
namespace v1 {
class DeviceInventory;
}  // namespace v1

struct ProberOptions {
  DevicePolicy policy = DevicePolicy::kAuto;
  // Whether a device that stands for host memory will do, as tests and simulated nodes have them: its stream runs
  // functions. Without this they are passed over, and a node that has no others has none.
  bool host_devices = false;
  // How long what was found is believed: a device; and that there is none, or that it does not work.
  absl::Duration keep = absl::Minutes(1);
  absl::Duration keep_failure = absl::Seconds(5);
  // How long a call waits for what another thread is looking for: a driver may hang, and who is in it cannot be fetched
  // back.
  absl::Duration patience = absl::Seconds(30);
};

// Which device: by the daemon's ordinal, or by UUID where that is not empty; neither: the best that this process can
// use, by its score at the daemon when it was first chosen. It stays the one for as long as it serves.
struct ProbeTarget {
  std::optional<uint32_t> device;
  std::string device_uuid;
};

namespace internal {

// Where a prober looks: the daemon, the driver and a steady clock (common/steady_clock.h).
struct ProbeSources {
  // Devices by ordinal.
  std::function<absl::StatusOr<std::vector<v1::DeviceInventory>>()> devices;
  std::function<absl::StatusOr<cuda::Driver*>()> driver;
  std::function<absl::Time()> now;
};

// `status` as it is, and with the label among its figures.
absl::Status WithLabel(absl::Status status, absl::string_view label);
// Errors: INVALID_FIELD for one that is not 1 to 128 printable bytes.
absl::Status CheckLabel(absl::string_view label);

// Makes the stream's context the thread's own until the end of the scope.
class StreamScope {
 public:
  static absl::StatusOr<StreamScope> Enter(const ProbedStream& stream);
  StreamScope(StreamScope&&) noexcept;
  StreamScope& operator=(StreamScope&&) = delete;
  ~StreamScope();

 private:
  struct State;
  explicit StreamScope(std::unique_ptr<State> state);
  // Null on the host.
  std::unique_ptr<State> state_;
};

}  // namespace internal

// Thread-safe. Streams that it gave stay good after it.
class Prober {
 public:
  // With DevicePolicy::kOff `session` may be null.
  static std::shared_ptr<Prober> Create(std::shared_ptr<Session> session, const ProberOptions& options = {});
  // The SDK's own.
  Prober(internal::ProbeSources sources, const ProberOptions& options);
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;
  ~Prober();

  // Finds a device and sees that it works: a context, what it is, and a stream that was synchronised. The label says
  // for whom: 1 to 128 printable bytes, in all errors as the figure `label`.
  // Errors, as refusals with the figures `label`, `ordinal` (the daemon's; where one was chosen) and `why`:
  //   NO_RUNTIME "{label} backend: no CUDA runtime available" for an absence where a device is required, with the
  //     figure `absence` (AbsenceName()). Host memory is none unless ProberOptions::host_devices says so: why there is
  //     no device is then what keeps this process from CUDA;
  //   DRIVER or DEVICE_STOPPED "{label} backend: failed to create CUDA context for device {ordinal}";
  //   DRIVER, too, for one whose stream fails;
  //   NOT_FOUND for a device that was asked for and is not there; INVALID_FIELD for the label.
  // The daemon's silence (kUnavailable, kDeadlineExceeded) comes as it is, after the label; so does kDeadlineExceeded
  // where another thread looks at the same device, or starts the driver, for longer than ProberOptions::patience.
  absl::StatusOr<OrAbsent<ProbedDevice>> Probe(absl::string_view label, const ProbeTarget& target = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same, and believes nothing that was found before the call.
  absl::StatusOr<OrAbsent<ProbedDevice>> ProbeAgain(absl::string_view label, const ProbeTarget& target = {})
      ABSL_LOCKS_EXCLUDED(mu_);

  // How often it has looked.
  uint64_t looks() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What does not work, but for the label.
  struct Fault {
    Reason reason = Reason::kDriver;
    std::string text;
    std::vector<Figure> figures;
    // Instead, where it is no refusal of ours.
    absl::Status other;
  };
  using Outcome = std::variant<ProbedDevice, Absence, Fault>;
  struct Known {
    Outcome outcome;
    absl::Time expires;
    // The look that found it.
    uint64_t look = 0;
  };

  absl::StatusOr<OrAbsent<ProbedDevice>> Find(absl::string_view label, const ProbeTarget& target, bool again)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What is known of the target; or nothing, and the caller is the one who looks. A fault where that takes others until
  // `deadline`.
  std::optional<Outcome> AwaitOrBegin(const std::string& key, bool again, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(const std::string& key, const Outcome& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<OrAbsent<ProbedDevice>> Say(absl::string_view label, const Outcome& outcome) const;

  // Begins what one thread does at a time, whatever targets are looked for: a device, by its UUID, or the driver's
  // start, by "". End() ends it.
  // Errors: kDeadlineExceeded where another thread is at it until `deadline`.
  absl::Status Begin(const std::string& what, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void End(const std::string& what) ABSL_LOCKS_EXCLUDED(mu_);
  // Errors: Begin()'s; the driver's.
  absl::StatusOr<cuda::Driver*> GetDriver(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // The device's stream, null before there is one; and makes one the device's. Between Begin() and End().
  std::shared_ptr<ProbedStream> StreamOf(const std::string& uuid) const ABSL_LOCKS_EXCLUDED(mu_);
  void KeepStream(const std::string& uuid, std::shared_ptr<ProbedStream> stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Without the lock. Those of different targets may run at a time, even where that is the same device in the end.
  Outcome Look(const ProbeTarget& target, absl::Time deadline);
  Outcome LookForBest(std::vector<v1::DeviceInventory> devices, absl::Time deadline);
  Outcome LookAt(const v1::DeviceInventory& device, absl::Time deadline);
  Outcome LookAtCuda(const v1::DeviceInventory& device, cuda::Driver& driver);
  Outcome LookAtHost(const v1::DeviceInventory& device);
  // What comes of host devices that will not do.
  Outcome PassOverHost(absl::Time deadline);
  absl::Status TooLong() const;
  static Fault NoContext(uint32_t ordinal, const absl::Status& why);

  const internal::ProbeSources sources_;
  const ProberOptions options_;

  mutable Mutex mu_;
  // Told when a look has ended, or what Begin() has begun.
  SteadyCondVar ended_;
  // The targets that are looked for, and by which look.
  std::map<std::string, uint64_t> looking_ ABSL_GUARDED_BY(mu_);
  // What Begin() has begun.
  std::set<std::string> begun_ ABSL_GUARDED_BY(mu_);
  // The streams made so far, by UUID: one for a device, whichever target it was found for, so that its primary context
  // is retained once.
  std::map<std::string, std::shared_ptr<ProbedStream>> streams_ ABSL_GUARDED_BY(mu_);
  // Which device is the best; empty before it is chosen.
  std::string chosen_ ABSL_GUARDED_BY(mu_);
  uint64_t looks_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Known> known_ ABSL_GUARDED_BY(mu_);
};

// Probes, then has `build` make the caller's own thing of the device, with its context the thread's own meanwhile.
// `build(const ProbedDevice&)` returns an absl::StatusOr; it is not called where the probe finds nothing. Its errors
// pass through as they are, with the label among their figures.
template <typename Build>
auto ProbeAndBuild(Prober& prober, absl::string_view label, Build build, const ProbeTarget& target = {})
    -> absl::StatusOr<OrAbsent<typename std::invoke_result_t<Build, const ProbedDevice&>::value_type>> {
  using Built = typename std::invoke_result_t<Build, const ProbedDevice&>::value_type;
  BERTH_ASSIGN_OR_RETURN(OrAbsent<ProbedDevice> probed, prober.Probe(label, target));
  if (!probed.present()) return OrAbsent<Built>(probed.absence());
  absl::StatusOr<internal::StreamScope> scope = internal::StreamScope::Enter(*probed.value().stream);
  if (!scope.ok()) return internal::WithLabel(scope.status(), label);
  absl::StatusOr<Built> built = build(static_cast<const ProbedDevice&>(probed.value()));
  if (!built.ok()) return internal::WithLabel(built.status(), label);
  return OrAbsent<Built>(*std::move(built));
}

}  // namespace berth

#endif  // CLIENT_PROBE_H_
