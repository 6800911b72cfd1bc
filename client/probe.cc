#include "client/probe.h"

#include <algorithm>
#include <tuple>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/inspector.h"
#include "client/internal/driver_absence.h"
#include "client/internal/host_stream.h"
#include "common/cuda/current_context.h"
#include "common/cuda/driver.h"
#include "common/device_score.h"
#include "common/label.h"
#include "common/steady_clock.h"

namespace berth {
namespace {

using cuda::DeviceAttribute;

// A device's primary context, retained, and its default stream.
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
    return Refuse(Reason::kUnsupported, "a CUDA stream takes kernels, not {capability}",
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

// A thread, as everywhere on the host.
class HostProbedStream final : public ProbedStream {
 public:
  HostProbedStream() : stream_([] { return false; }) {}

  absl::Status Synchronize() override { return stream_.Synchronize(); }
  absl::Status MakeCurrent() override { return absl::OkStatus(); }
  absl::Status Enqueue(std::function<void()> work) override { return stream_.Enqueue(std::move(work)); }
  void* cuda_context() const override { return nullptr; }
  void* cuda_stream() const override { return nullptr; }
  cuda::Driver* driver() const override { return nullptr; }

 private:
  internal::HostStream stream_;
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

// As the daemon knows it.
Bytes FreeOf(const v1::DeviceInventory& device) {
  const v1::Figure& free = device.condition().free_bytes();
  if (free.known_case() == v1::Figure::kValue) return Bytes(free.value());
  return SaturatingSub(Bytes(device.device().total_bytes()), Bytes(device.device().bytes().outstanding()));
}

GpuCapability CapabilityOf(const v1::DeviceInventory& device) {
  const int both = static_cast<int>(device.hardware().compute_capability());
  return {.major = both / 10, .minor = both % 10};
}

// The daemon's own, by what could be granted; one that says none is older, and what is free is all that is known.
double ScoreOf(const v1::DeviceInventory& device) {
  if (device.score_version() != 0) return device.score();
  return DeviceScore({.sm_count = device.hardware().multiprocessors(),
                      .cc_major = static_cast<uint32_t>(CapabilityOf(device).major),
                      .free = FreeOf(device)});
}

// What the daemon says of it.
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
  AddFigure({"label", label}, &status);
  return status;
}

absl::Status CheckLabel(absl::string_view label) {
  if (!label.empty()) return ValidateLabel("label", label);
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
    : sources_(std::move(sources)), options_(options) {}

Prober::~Prober() = default;

absl::StatusOr<OrAbsent<ProbedDevice>> Prober::Probe(absl::string_view label, const ProbeTarget& target) {
  return Find(label, target, /*again=*/false);
}

absl::StatusOr<OrAbsent<ProbedDevice>> Prober::ProbeAgain(absl::string_view label, const ProbeTarget& target) {
  return Find(label, target, /*again=*/true);
}

uint64_t Prober::looks() const {
  MutexLock lock(&mu_);
  return looks_;
}

absl::StatusOr<OrAbsent<ProbedDevice>> Prober::Find(absl::string_view label, const ProbeTarget& target,
                                                    bool again) {
  BERTH_RETURN_IF_ERROR(internal::CheckLabel(label));
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

std::optional<Prober::Outcome> Prober::AwaitOrBegin(const std::string& key, bool again, absl::Time deadline) {
  MutexLock lock(&mu_);
  // What is being looked for by now was begun before the call.
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

void Prober::Finish(const std::string& key, const Outcome& outcome) {
  MutexLock lock(&mu_);
  const uint64_t look = looking_.extract(key).mapped();
  ended_.SignalAll();
  const auto* const fault = std::get_if<Fault>(&outcome);
  // Of names that nobody has there are many; and a daemon that did not answer may do so at once.
  if (fault != nullptr && (!fault->other.ok() || fault->reason == Reason::kNotFound)) {
    known_.erase(key);
    return;
  }
  const bool good = std::holds_alternative<ProbedDevice>(outcome);
  known_.insert_or_assign(
      key, Known{.outcome = outcome,
                 .expires = sources_.now() + (good ? options_.keep : options_.keep_failure),
                 .look = look});
}

absl::Status Prober::Begin(const std::string& what, absl::Time deadline) {
  MutexLock lock(&mu_);
  while (begun_.contains(what)) {
    if (ended_.WaitWithDeadline(&mu_, deadline) && begun_.contains(what)) return TooLong();
  }
  begun_.insert(what);
  return absl::OkStatus();
}

void Prober::End(const std::string& what) {
  MutexLock lock(&mu_);
  begun_.erase(what);
  ended_.SignalAll();
}

absl::StatusOr<cuda::Driver*> Prober::GetDriver(absl::Time deadline) {
  BERTH_RETURN_IF_ERROR(Begin("", deadline));
  const absl::Cleanup end = [this] { End(""); };
  return sources_.driver();
}

std::shared_ptr<ProbedStream> Prober::StreamOf(const std::string& uuid) const {
  MutexLock lock(&mu_);
  const auto found = streams_.find(uuid);
  return found != streams_.end() ? found->second : nullptr;
}

void Prober::KeepStream(const std::string& uuid, std::shared_ptr<ProbedStream> stream) {
  MutexLock lock(&mu_);
  streams_.insert_or_assign(uuid, std::move(stream));
}

absl::Status Prober::TooLong() const {
  return absl::DeadlineExceededError(absl::StrCat("another thread has been looking for a device for more than ",
                                                  absl::FormatDuration(options_.patience),
                                                  ": the driver may hang"));
}

absl::StatusOr<OrAbsent<ProbedDevice>> Prober::Say(absl::string_view label, const Outcome& outcome) const {
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
  std::vector<Figure> figures = fault.figures;
  figures.emplace_back("label", label);
  return Refuse(fault.reason, fault.text, figures);
}

Prober::Outcome Prober::Look(const ProbeTarget& target, absl::Time deadline) {
  absl::StatusOr<std::vector<v1::DeviceInventory>> devices = sources_.devices();
  if (!devices.ok()) return Fault{.other = devices.status()};
  if (target.device.has_value() || !target.device_uuid.empty()) {
    for (const v1::DeviceInventory& device : *devices) {
      const bool it = target.device_uuid.empty() ? device.device().ordinal() == *target.device
                                                 : device.device().uuid() == target.device_uuid;
      if (it) return LookAt(device, deadline);
    }
    const std::string id = target.device_uuid.empty() ? absl::StrCat(*target.device) : target.device_uuid;
    return Fault{.reason = Reason::kNotFound,
                 .text = "{label} backend: no {kind} {id}",
                 .figures = {{"kind", "device"}, {"id", id}}};
  }
  return LookForBest(*std::move(devices), deadline);
}

Prober::Outcome Prober::LookForBest(std::vector<v1::DeviceInventory> devices, absl::Time deadline) {
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
  return Absence{.kind = Absence::Kind::kNoDevice, .why = "this process sees none of the node's devices"};
}

Prober::Outcome Prober::PassOverHost(absl::Time deadline) {
  const absl::Status driver = GetDriver(deadline).status();
  if (absl::IsDeadlineExceeded(driver)) return Fault{.other = driver};
  return internal::AbsenceOnHostMemory(driver);
}

Prober::Fault Prober::NoContext(uint32_t ordinal, const absl::Status& why) {
  Fault fault = {.reason = Reason::kDriver,
                 .text = "{label} backend: failed to create CUDA context for device {ordinal}",
                 .figures = {{"ordinal", ordinal}, {"why", std::string(why.message())}}};
  if (const std::optional<ErrorDetails> details = GetErrorDetails(why)) {
    for (const char* const figure : {"call", "driver_code"}) {
      const auto found = details->metadata.find(figure);
      if (found != details->metadata.end()) fault.figures.emplace_back(figure, found->second);
    }
  }
  return fault;
}

Prober::Outcome Prober::LookAt(const v1::DeviceInventory& inventory, absl::Time deadline) {
  const v1::Device& device = inventory.device();
  if (IsHost(device) && !options_.host_devices) return PassOverHost(deadline);
  if (!Serves(inventory) && device.state() != v1::Device::DRAINING) {
    Fault fault = NoContext(device.ordinal(), absl::UnavailableError(absl::StrCat(
                                                  "the daemon has it out of service: ", device.last_failure())));
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

Prober::Outcome Prober::LookAtHost(const v1::DeviceInventory& inventory) {
  const v1::Device& device = inventory.device();
  std::shared_ptr<ProbedStream> stream = StreamOf(device.uuid());
  if (stream == nullptr) {
    stream = std::make_shared<HostProbedStream>();
    KeepStream(device.uuid(), stream);
  }
  if (const absl::Status status = stream->Synchronize(); !status.ok()) return NoContext(device.ordinal(), status);
  ProbedDevice found = Describe(inventory);
  found.probe_time = absl::Now();
  found.stream = stream;
  return found;
}

Prober::Outcome Prober::LookAtCuda(const v1::DeviceInventory& inventory, cuda::Driver& driver) {
  const v1::Device& device = inventory.device();
  const absl::StatusOr<int> ordinal = cuda::FindDevice(driver, device.uuid());
  if (absl::IsNotFound(ordinal.status())) {
    return Fault{.reason = Reason::kNotFound,
                 .text = "{label} backend: this process sees no {kind} {id}",
                 .figures = {{"kind", "device"}, {"id", device.uuid()}}};
  }
  if (!ordinal.ok()) return NoContext(device.ordinal(), ordinal.status());
  // Before anything else of the device's: what comes later stands in this context.
  std::shared_ptr<ProbedStream> stream = StreamOf(device.uuid());
  if (stream == nullptr) {
    const absl::StatusOr<cuda::Context> context = driver.RetainPrimaryContext(*ordinal);
    if (!context.ok()) return NoContext(device.ordinal(), context.status());
    stream = std::make_shared<CudaProbedStream>(driver, *ordinal, *context);
    KeepStream(device.uuid(), stream);
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
