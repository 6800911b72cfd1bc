#include <berth/probe.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <berth/error.h>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/inventory.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/devices/driver_absence.h"
#include "client/sdk/fences/host_stream.h"
#include "common/cuda/current_context.h"
#include "common/cuda/driver.h"
#include "common/device_name.h"
#include "common/device_score.h"
#include "common/label.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"
#include "common/steady_cond_var.h"

namespace berth {
namespace {

using cuda::DeviceAttribute;

// A CUDA device's retained primary context, with its default stream.
class CudaProbedStream final : public ProbedStream {
 public:
  CudaProbedStream(cuda::Driver& driver, int ordinal, cuda::Context context)
      : driver_(driver), ordinal_(ordinal), context_(context) {}
  ~CudaProbedStream() override { driver_.ReleasePrimaryContext(ordinal_).IgnoreError(); }

  absl::Status Synchronize() override {
    BERTH_ASSIGN_OR_RETURN(const cuda::CurrentContext current, cuda::CurrentContext::Enter(driver_, context_));
    return driver_.SynchronizeStream(nullptr);
  }
  absl::Status MakeCurrent() override { return driver_.SetCurrentContext(context_); }
  absl::Status Enqueue(std::function<void()>) override {
    return Refuse(Reason::kUnsupported, "a CUDA stream runs kernels, not {capability}",
                  {{"capability", "host functions"}});
  }
  void* cuda_context() const override { return context_; }
  void* cuda_stream() const override { return nullptr; }
  cuda::Driver* driver() const override { return &driver_; }

 private:
  cuda::Driver& driver_;
  const int ordinal_;
  const cuda::Context context_;
};

// A host device's stream: a thread.
class HostProbedStream final : public ProbedStream {
 public:
  explicit HostProbedStream(std::unique_ptr<internal::HostStream> stream) : stream_(std::move(stream)) {}

  absl::Status Synchronize() override { return stream_->Synchronize(); }
  absl::Status MakeCurrent() override { return absl::OkStatus(); }
  absl::Status Enqueue(std::function<void()> work) override { return stream_->Enqueue(std::move(work)); }
  void* cuda_context() const override { return nullptr; }
  void* cuda_stream() const override { return nullptr; }
  cuda::Driver* driver() const override { return nullptr; }

 private:
  const std::unique_ptr<internal::HostStream> stream_;
};

bool IsHost(const v1::Device& device) { return device.kind() == v1::MEMORY_KIND_HOST; }

bool Serves(const v1::DeviceInventory& device) {
  return device.device().state() == v1::Device::READY || device.device().state() == v1::Device::REBUILDING;
}

DeviceHealth HealthOf(const v1::DeviceInventory& device) {
  if (device.device().state() == v1::Device::REBUILDING) return DeviceHealth::kRebuilding;
  if (device.device().state() == v1::Device::DRAINING) return DeviceHealth::kDraining;
  switch (device.condition().health()) {
    case v1::Condition::DEGRADED:
    case v1::Condition::LOST:
    case v1::Condition::SILENT:
      return DeviceHealth::kDegraded;
    default:
      return DeviceHealth::kReady;
  }
}

// Free bytes, as the daemon knows them.
Bytes FreeOf(const v1::DeviceInventory& device) {
  const v1::Figure& free = device.condition().free_bytes();
  if (free.known_case() == v1::Figure::kValue) return Bytes(free.value());
  return SaturatingSub(Bytes(device.device().total_bytes()), Bytes(device.device().bytes().outstanding()));
}

GpuCapability CapabilityOf(const v1::DeviceInventory& device) {
  const int both = static_cast<int>(device.hardware().compute_capability());
  return {.major = both / 10, .minor = both % 10};
}

// Returns the daemon's score, which is based on grantable bytes. An older daemon sends none: then computes a score from
// the free bytes.
double ScoreOf(const v1::DeviceInventory& device) {
  if (device.score_version() != 0) return device.score();
  return DeviceScore({.sm_count = device.hardware().multiprocessors(),
                      .cc_major = static_cast<uint32_t>(CapabilityOf(device).major),
                      .free = FreeOf(device)});
}

// The device as the daemon describes it.
ProbedDevice Describe(const v1::DeviceInventory& inventory) {
  const v1::Device& device = inventory.device();
  ProbedDevice found = {.device = device.ordinal(),
                        .local_ordinal = static_cast<int>(device.ordinal()),
                        .uuid = device.uuid(),
                        .name = device.name(),
                        .host = IsHost(device),
                        .capability = CapabilityOf(inventory),
                        .multiprocessors = inventory.hardware().multiprocessors(),
                        .total = Bytes(device.total_bytes()),
                        .free = FreeOf(inventory),
                        .generation = device.generation(),
                        .health = HealthOf(inventory)};
  if (found.health == DeviceHealth::kDegraded) found.trouble = inventory.condition().trouble();
  return found;
}

std::string KeyOf(const ProbeTarget& target) {
  if (!target.device_uuid.empty()) return target.device_uuid;
  return target.device.has_value() ? absl::StrCat("#", *target.device) : "";
}

}  // namespace

namespace internal {

absl::Status WithLabel(absl::Status status, absl::string_view label) {
  AddNamedValue({"label", label}, &status);
  return status;
}

absl::StatusOr<std::string> CleanLabel(absl::string_view label) {
  if (!label.empty()) return ToLabel(label);
  return Refuse(Reason::kInvalidField, "{field}: {value} bytes, the least is {limit}",
                {{"field", "label"}, {"value", 0}, {"limit", 1}});
}

struct StreamScope::State {
  cuda::CurrentContext current;
};

StreamScope::StreamScope(std::unique_ptr<State> state) : state_(std::move(state)) {}
StreamScope::StreamScope(StreamScope&&) noexcept = default;
StreamScope::~StreamScope() = default;

absl::StatusOr<StreamScope> StreamScope::Enter(const ProbedStream& stream) {
  if (stream.driver() == nullptr) return StreamScope(nullptr);
  BERTH_ASSIGN_OR_RETURN(
      cuda::CurrentContext current,
      cuda::CurrentContext::Enter(*stream.driver(), static_cast<cuda::Context>(stream.cuda_context())));
  return StreamScope(std::unique_ptr<State>(new State{std::move(current)}));
}

}  // namespace internal

class Prober::Impl {
 public:
  Impl(internal::ProbeSources sources, const ProberOptions& options)
      : sources_(std::move(sources)), options_(options) {}

  absl::StatusOr<OrAbsent<ProbedDevice>> Find(absl::string_view label, const ProbeTarget& target, bool again)
      ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t looks() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A device that does not work; without the label.
  struct Fault {
    Reason reason = Reason::kDriver;
    std::string text;
    std::vector<NamedValue> named_values;
    // Set instead of the fields above if the error is not a refusal of this SDK.
    absl::Status other;
  };
  using Outcome = std::variant<ProbedDevice, Absence, Fault>;
  struct Known {
    Outcome outcome;
    absl::Time expires;
    // Number of the probe that found the outcome.
    uint64_t look = 0;
  };

  // Returns the known result for the target, or nothing: then the caller must probe. Returns a fault if another
  // thread's probe takes until `deadline`.
  std::optional<Outcome> AwaitOrBegin(const std::string& key, bool again, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(const std::string& key, const Outcome& outcome) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<OrAbsent<ProbedDevice>> Say(absl::string_view label, const Outcome& outcome) const;

  // Begins work that one thread does at a time, across all targets: probing a device, named by its UUID, or starting
  // the driver, named by "". End() ends it.
  // Errors: kDeadlineExceeded if another thread does this work until `deadline`.
  absl::Status Begin(const std::string& what, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void End(const std::string& what) ABSL_LOCKS_EXCLUDED(mu_);
  // Errors: Begin()'s; the driver's.
  absl::StatusOr<cuda::Driver*> GetDriver(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // StreamOf() returns the device's stream, null before it exists; CacheStream() stores it. Called between Begin() and
  // End().
  std::shared_ptr<ProbedStream> StreamOf(const std::string& uuid) const ABSL_LOCKS_EXCLUDED(mu_);
  void CacheStream(const std::string& uuid, std::shared_ptr<ProbedStream> stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Called without the lock. Probes of different targets may run concurrently, even if they reach the same device.
  Outcome Look(const ProbeTarget& target, absl::Time deadline);
  Outcome LookForBest(std::vector<v1::DeviceInventory> devices, absl::Time deadline);
  Outcome LookAt(const v1::DeviceInventory& device, absl::Time deadline);
  Outcome LookAtCuda(const v1::DeviceInventory& device, cuda::Driver& driver);
  Outcome LookAtHost(const v1::DeviceInventory& device);
  // Returns the outcome if the node has only host devices and the options do not accept them.
  Outcome PassOverHost(absl::Time deadline);
  absl::Status TooLong() const;
  static Fault NoContext(uint32_t ordinal, const absl::Status& why);

  const internal::ProbeSources sources_;
  const ProberOptions options_;

  mutable Mutex mu_;
  // Signalled when a probe has ended, or work that Begin() had begun.
  SteadyCondVar ended_;
  // Targets being probed, with the number of their probe.
  std::map<std::string, uint64_t> looking_ ABSL_GUARDED_BY(mu_);
  // Work begun by Begin().
  std::set<std::string> begun_ ABSL_GUARDED_BY(mu_);
  // Streams made so far, by UUID. A device has one stream, whichever target found it, so that its primary context is
  // retained once.
  std::map<std::string, std::shared_ptr<ProbedStream>> streams_ ABSL_GUARDED_BY(mu_);
  // UUID of the chosen best device; empty before the choice.
  std::string chosen_ ABSL_GUARDED_BY(mu_);
  uint64_t looks_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Known> known_ ABSL_GUARDED_BY(mu_);
};

std::shared_ptr<Prober> Prober::Create(std::shared_ptr<Session> session, const ProberOptions& options) {
  internal::ProbeSources sources;
  sources.devices = [session]() -> absl::StatusOr<std::vector<v1::DeviceInventory>> {
    BERTH_ASSIGN_OR_RETURN(const v1::ListInventoryResponse list, Inspector(session).ListInventory());
    return std::vector<v1::DeviceInventory>(list.devices().begin(), list.devices().end());
  };
  sources.driver = [] { return cuda::Driver::Get(); };
  sources.now = &SteadyNow;
  return std::make_shared<Prober>(std::move(sources), options);
}

Prober::Prober(internal::ProbeSources sources, const ProberOptions& options)
    : impl_(std::make_unique<Impl>(std::move(sources), options)) {}

Prober::~Prober() = default;

absl::StatusOr<OrAbsent<ProbedDevice>> Prober::Probe(absl::string_view label, const ProbeTarget& target) {
  return impl_->Find(label, target, /*again=*/false);
}

absl::StatusOr<OrAbsent<ProbedDevice>> Prober::ProbeAgain(absl::string_view label, const ProbeTarget& target) {
  return impl_->Find(label, target, /*again=*/true);
}

uint64_t Prober::looks() const { return impl_->looks(); }

uint64_t Prober::Impl::looks() const {
  MutexLock lock(&mu_);
  return looks_;
}

absl::StatusOr<OrAbsent<ProbedDevice>> Prober::Impl::Find(absl::string_view text, const ProbeTarget& target,
                                                          bool again) {
  BERTH_ASSIGN_OR_RETURN(const std::string label, internal::CleanLabel(text));
  if (!target.device_uuid.empty()) BERTH_RETURN_IF_ERROR(ValidateLabel("device_uuid", target.device_uuid));
  if (options_.policy == DevicePolicy::kOff) {
    return Say(label, Absence{.kind = Absence::Kind::kPolicyOff, .why = "GPU policy is off"});
  }
  const std::string key = KeyOf(target);
  const absl::Time deadline = SteadyNow() + options_.patience;
  if (const std::optional<Outcome> known = AwaitOrBegin(key, again, deadline)) return Say(label, *known);
  const Outcome outcome = Look(target, deadline);
  Finish(key, outcome);
  return Say(label, outcome);
}

std::optional<Prober::Impl::Outcome> Prober::Impl::AwaitOrBegin(const std::string& key, bool again,
                                                                absl::Time deadline) {
  MutexLock lock(&mu_);
  // A probe that is already running began before the call.
  const uint64_t oldest = again ? looks_ + 1 : 0;
  while (true) {
    const auto known = known_.find(key);
    if (known != known_.end() && known->second.look >= oldest && sources_.now() < known->second.expires) {
      return known->second.outcome;
    }
    if (!looking_.contains(key)) break;
    if (ended_.WaitWithDeadline(&mu_, deadline) && looking_.contains(key)) return Fault{.other = TooLong()};
  }
  looking_.emplace(key, ++looks_);
  return std::nullopt;
}

void Prober::Impl::Finish(const std::string& key, const Outcome& outcome) {
  MutexLock lock(&mu_);
  const uint64_t look = looking_.extract(key).mapped();
  ended_.SignalAll();
  const auto* const fault = std::get_if<Fault>(&outcome);
  // Do not cache unknown names, of which there are many, nor a daemon's missing answer, which may come at the next
  // call.
  if (fault != nullptr && (!fault->other.ok() || fault->reason == Reason::kNotFound)) {
    known_.erase(key);
    return;
  }
  const bool good = std::holds_alternative<ProbedDevice>(outcome);
  known_.insert_or_assign(
      key, Known{.outcome = outcome,
                 .expires = sources_.now() + (good ? options_.cache_success : options_.cache_failure),
                 .look = look});
}

absl::Status Prober::Impl::Begin(const std::string& what, absl::Time deadline) {
  MutexLock lock(&mu_);
  while (begun_.contains(what)) {
    if (ended_.WaitWithDeadline(&mu_, deadline) && begun_.contains(what)) return TooLong();
  }
  begun_.insert(what);
  return absl::OkStatus();
}

void Prober::Impl::End(const std::string& what) {
  MutexLock lock(&mu_);
  begun_.erase(what);
  ended_.SignalAll();
}

absl::StatusOr<cuda::Driver*> Prober::Impl::GetDriver(absl::Time deadline) {
  BERTH_RETURN_IF_ERROR(Begin("", deadline));
  const absl::Cleanup end = [this] { End(""); };
  return sources_.driver();
}

std::shared_ptr<ProbedStream> Prober::Impl::StreamOf(const std::string& uuid) const {
  MutexLock lock(&mu_);
  const auto found = streams_.find(uuid);
  return found != streams_.end() ? found->second : nullptr;
}

void Prober::Impl::CacheStream(const std::string& uuid, std::shared_ptr<ProbedStream> stream) {
  MutexLock lock(&mu_);
  streams_.insert_or_assign(uuid, std::move(stream));
}

absl::Status Prober::Impl::TooLong() const {
  return absl::DeadlineExceededError(absl::StrCat("another thread's search for a device takes longer than ",
                                                  absl::FormatDuration(options_.patience), ": the driver may hang"));
}

absl::StatusOr<OrAbsent<ProbedDevice>> Prober::Impl::Say(absl::string_view label, const Outcome& outcome) const {
  if (const auto* const device = std::get_if<ProbedDevice>(&outcome)) return OrAbsent<ProbedDevice>(*device);
  if (const auto* const absence = std::get_if<Absence>(&outcome)) {
    if (options_.policy != DevicePolicy::kRequired) return OrAbsent<ProbedDevice>(*absence);
    return Refuse(Reason::kNoRuntime, "{label} backend: no CUDA runtime available",
                  {{"label", label}, {"absence", AbsenceName(absence->kind)}, {"why", absence->why}});
  }
  const Fault& fault = std::get<Fault>(outcome);
  if (!fault.other.ok()) {
    absl::Status status(fault.other.code(), absl::StrCat(label, " backend: ", fault.other.message()));
    if (std::optional<ErrorDetails> details = GetErrorDetails(fault.other)) SetErrorDetails(*details, &status);
    return internal::WithLabel(std::move(status), label);
  }
  std::vector<NamedValue> named_values = fault.named_values;
  named_values.emplace_back("label", label);
  return Refuse(fault.reason, fault.text, named_values);
}

Prober::Impl::Outcome Prober::Impl::Look(const ProbeTarget& target, absl::Time deadline) {
  absl::StatusOr<std::vector<v1::DeviceInventory>> devices = sources_.devices();
  if (!devices.ok()) return Fault{.other = devices.status()};
  if (target.device.has_value() || !target.device_uuid.empty()) {
    const std::string name = target.device_uuid.empty() ? absl::StrCat(*target.device) : target.device_uuid;
    std::vector<DeviceLabel> labels;
    for (const v1::DeviceInventory& device : *devices) {
      labels.emplace_back(device.device().ordinal(), device.device().uuid());
    }
    const absl::StatusOr<uint32_t> found = FindDeviceByName(labels, name);
    for (const v1::DeviceInventory& device : *devices) {
      if (found.ok() && device.device().ordinal() == *found) return LookAt(device, deadline);
    }
    if (!absl::IsNotFound(found.status())) return Fault{.other = found.status()};
    return Fault{.reason = Reason::kNotFound,
                 .text = "{label} backend: no {kind} {id}",
                 .named_values = {{"kind", "device"}, {"id", name}}};
  }
  return LookForBest(*std::move(devices), deadline);
}

Prober::Impl::Outcome Prober::Impl::LookForBest(std::vector<v1::DeviceInventory> devices, absl::Time deadline) {
  if (devices.empty()) return Absence{.kind = Absence::Kind::kNoDevice, .why = "the daemon has no device"};
  if (!options_.host_devices) std::erase_if(devices, [](const auto& device) { return IsHost(device.device()); });
  if (devices.empty()) return PassOverHost(deadline);
  std::string chosen;
  {
    MutexLock lock(&mu_);
    chosen = chosen_;
  }
  const auto rank = [&chosen](const v1::DeviceInventory& device) {
    return std::tuple(Serves(device), device.device().uuid() == chosen, ScoreOf(device));
  };
  std::stable_sort(devices.begin(), devices.end(),
                   [&](const auto& a, const auto& b) { return rank(a) > rank(b); });
  for (const v1::DeviceInventory& device : devices) {
    Outcome outcome = LookAt(device, deadline);
    const auto* const fault = std::get_if<Fault>(&outcome);
    if (fault != nullptr && fault->reason == Reason::kNotFound) continue;
    if (std::holds_alternative<ProbedDevice>(outcome)) {
      MutexLock lock(&mu_);
      chosen_ = device.device().uuid();
    }
    return outcome;
  }
  return Absence{.kind = Absence::Kind::kNoDevice, .why = "this process can see none of the node's devices"};
}

Prober::Impl::Outcome Prober::Impl::PassOverHost(absl::Time deadline) {
  const absl::Status driver = GetDriver(deadline).status();
  if (absl::IsDeadlineExceeded(driver)) return Fault{.other = driver};
  return internal::AbsenceOnHostMemory(driver);
}

Prober::Impl::Fault Prober::Impl::NoContext(uint32_t ordinal, const absl::Status& why) {
  Fault fault = {.reason = Reason::kDriver,
                 .text = "{label} backend: failed to create CUDA context for device {ordinal}",
                 .named_values = {{"ordinal", ordinal}, {"why", std::string(why.message())}}};
  if (const std::optional<ErrorDetails> details = GetErrorDetails(why)) {
    for (const char* const named_value : {"call", "driver_code"}) {
      const auto found = details->metadata.find(named_value);
      if (found != details->metadata.end()) fault.named_values.emplace_back(named_value, found->second);
    }
  }
  return fault;
}

Prober::Impl::Outcome Prober::Impl::LookAt(const v1::DeviceInventory& inventory, absl::Time deadline) {
  const v1::Device& device = inventory.device();
  if (IsHost(device) && !options_.host_devices) return PassOverHost(deadline);
  if (!Serves(inventory) && device.state() != v1::Device::DRAINING) {
    Fault fault =
        NoContext(device.ordinal(), absl::UnavailableError(absl::StrCat("out of service: ", device.last_failure())));
    fault.reason = Reason::kDeviceStopped;
    return fault;
  }
  cuda::Driver* driver = nullptr;
  if (!IsHost(device)) {
    const absl::StatusOr<cuda::Driver*> found = GetDriver(deadline);
    if (const std::optional<Absence> absence = internal::AbsenceOfDriver(found.status())) return *absence;
    if (absl::IsDeadlineExceeded(found.status())) return Fault{.other = found.status()};
    if (!found.ok()) return NoContext(device.ordinal(), found.status());
    driver = *found;
  }
  if (absl::Status late = Begin(device.uuid(), deadline); !late.ok()) return Fault{.other = std::move(late)};
  const absl::Cleanup end = [&] { End(device.uuid()); };
  return driver != nullptr ? LookAtCuda(inventory, *driver) : LookAtHost(inventory);
}

Prober::Impl::Outcome Prober::Impl::LookAtHost(const v1::DeviceInventory& inventory) {
  const v1::Device& device = inventory.device();
  std::shared_ptr<ProbedStream> stream = StreamOf(device.uuid());
  if (stream == nullptr) {
    absl::StatusOr<std::unique_ptr<internal::HostStream>> thread = internal::HostStream::Start([] { return false; });
    if (!thread.ok()) return NoContext(device.ordinal(), thread.status());
    stream = std::make_shared<HostProbedStream>(*std::move(thread));
    CacheStream(device.uuid(), stream);
  }
  if (const absl::Status status = stream->Synchronize(); !status.ok()) return NoContext(device.ordinal(), status);
  ProbedDevice found = Describe(inventory);
  found.probe_time = absl::Now();
  found.stream = stream;
  return found;
}

Prober::Impl::Outcome Prober::Impl::LookAtCuda(const v1::DeviceInventory& inventory, cuda::Driver& driver) {
  const v1::Device& device = inventory.device();
  const absl::StatusOr<int> ordinal = cuda::FindDevice(driver, device.uuid());
  if (absl::IsNotFound(ordinal.status())) {
    return Fault{.reason = Reason::kNotFound,
                 .text = "{label} backend: this process sees no {kind} {id}",
                 .named_values = {{"kind", "device"}, {"id", device.uuid()}}};
  }
  if (!ordinal.ok()) return NoContext(device.ordinal(), ordinal.status());
  // Make the context before anything else of the device: everything else lives in this context.
  std::shared_ptr<ProbedStream> stream = StreamOf(device.uuid());
  if (stream == nullptr) {
    const absl::StatusOr<cuda::Context> context = driver.RetainPrimaryContext(*ordinal);
    if (!context.ok()) return NoContext(device.ordinal(), context.status());
    stream = std::make_shared<CudaProbedStream>(driver, *ordinal, *context);
    CacheStream(device.uuid(), stream);
  }
  const absl::StatusOr<internal::StreamScope> scope = internal::StreamScope::Enter(*stream);
  if (!scope.ok()) return NoContext(device.ordinal(), scope.status());
  if (const absl::Status status = stream->Synchronize(); !status.ok()) {
    Fault fault = NoContext(device.ordinal(), status);
    fault.text = "{label} backend: the default stream of device {ordinal} failed: {why}";
    return fault;
  }
  ProbedDevice found = Describe(inventory);
  found.local_ordinal = *ordinal;
  const auto read = [&]() -> absl::Status {
    BERTH_ASSIGN_OR_RETURN(found.capability.major,
                           driver.Attribute(*ordinal, DeviceAttribute::kComputeCapabilityMajor));
    BERTH_ASSIGN_OR_RETURN(found.capability.minor,
                           driver.Attribute(*ordinal, DeviceAttribute::kComputeCapabilityMinor));
    BERTH_ASSIGN_OR_RETURN(const int multiprocessors,
                           driver.Attribute(*ordinal, DeviceAttribute::kMultiprocessors));
    found.multiprocessors = static_cast<uint32_t>(multiprocessors);
    BERTH_ASSIGN_OR_RETURN(const cuda::Driver::MemoryInfo memory, driver.GetMemoryInfo());
    found.free = memory.free;
    return absl::OkStatus();
  };
  if (const absl::Status status = read(); !status.ok()) return NoContext(device.ordinal(), status);
  found.probe_time = absl::Now();
  found.stream = stream;
  return found;
}

}  // namespace berth
