// Requests for bytes that are not available: their cost to another user's block.

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/bytes.h>
#include <berth/session.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/memory.grpc.pb.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/session_credentials.h"
#include "tests/bench/measurements/measurements.h"
#include "tests/bench/servers.h"
#include "tests/bench/stopwatch.h"
#include "tests/support/wire/raw_client.h"

namespace berth::bench {
namespace {

constexpr uint64_t kUsers = 8;
// More than one user's limit of waiters on a device, and fewer than the limit of all users.
constexpr uint64_t kPerDevice = 896;
constexpr double kBound = 1.3;
constexpr Bytes kOnADevice = MiB(64);
constexpr Bytes kHeld = MiB(16);

// A daemon with a block on every device, and requests for more than the rest.
class FullDevices {
 public:
  static absl::StatusOr<std::unique_ptr<FullDevices>> Start(const Programs& programs, uint32_t devices) {
    Programs host = programs;
    host.backend = "host";
    std::unique_ptr<FullDevices> full_devices(new FullDevices(devices));
    BERTH_ASSIGN_OR_RETURN(
        full_devices->daemon_, StartDaemon(host, {absl::StrCat("--host-devices=", devices),
                                                  absl::StrCat("--host-bytes=", kOnADevice.count()),
                                                  absl::StrCat("--device-budget=", kOnADevice.count())}));
    const std::string& folder = full_devices->daemon_->folder();
    BERTH_ASSIGN_OR_RETURN(full_devices->session_, Session::Open({.folder = folder, .always_new = true}));
    OpenToAllUsers(folder);
    for (uint32_t device = 0; device < devices; ++device) {
      BERTH_ASSIGN_OR_RETURN(
          Block held, Block::Allocate(full_devices->session_, {.bytes = kHeld, .device = device}));
      full_devices->held_.push_back(std::move(held));
    }
    // One user where this process is not root and cannot be several.
    for (uint64_t i = 0; i < kUsers; ++i) {
      const uid_t user = ::geteuid() == 0 ? static_cast<uid_t>(60'001 + i) : 0;
      full_devices->clients_.push_back(testing::RawClient::Open(folder, "berthd.sock", user));
      full_devices->stubs_.push_back(v1::MemoryService::NewStub(full_devices->clients_.back().grpc_channel()));
    }
    return full_devices;
  }

  ~FullDevices() {
    for (const auto& call : calls_) call->context.TryCancel();
    MutexLock lock(&mu_);
    while (open_ > 0) changed_.Wait(&mu_);
  }

  // Sends requests that all differ. Errors: one of them was answered.
  absl::Status Ask(uint64_t per_device) {
    for (uint64_t i = 0; i < per_device * devices_; ++i) Ask();
    absl::SleepFor(absl::Seconds(2));
    MutexLock lock(&mu_);
    if (open_ == calls_.size()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(open_, " of ", calls_.size(), " wait"));
  }
  // Allocates and frees the other user's block, on the first device.
  absl::StatusOr<double> AllocateAndFree() {
    return Microseconds([&]() -> absl::Status {
      BERTH_ASSIGN_OR_RETURN(Block block, Block::Allocate(session_, {.bytes = Bytes(4096)}));
      return block.Free();
    });
  }

 private:
  // Must outlive its answer.
  struct Waiting {
    grpc::ClientContext context;
    v1::AllocateBlockRequest request;
    v1::AllocateBlockResponse response;
  };

  explicit FullDevices(uint32_t devices) : devices_(devices) {}

  void Ask() {
    const uint64_t i = calls_.size();
    const uint64_t at = i / devices_ % kUsers;
    Waiting& call = *calls_.emplace_back(std::make_unique<Waiting>());
    call.context.AddMetadata(kCredentialsHeader, EncodeCredentials(clients_[at].credentials()));
    *call.request.mutable_request() = clients_[at].NextTag();
    call.request.set_device(static_cast<uint32_t>(i % devices_));
    call.request.set_bytes(kOnADevice.count() - i / devices_ * 4096);
    call.request.mutable_max_wait()->set_seconds(600);
    {
      MutexLock lock(&mu_);
      ++open_;
    }
    stubs_[at]->async()->AllocateBlock(&call.context, &call.request, &call.response, [this](const grpc::Status&) {
      MutexLock lock(&mu_);
      --open_;
      changed_.SignalAll();
    });
  }

  const uint32_t devices_;
  std::unique_ptr<Server> daemon_;
  // The other user's session.
  std::shared_ptr<Session> session_;
  std::vector<Block> held_;
  std::vector<testing::RawClient> clients_;
  std::vector<std::unique_ptr<v1::MemoryService::Stub>> stubs_;
  std::vector<std::unique_ptr<Waiting>> calls_;

  Mutex mu_;
  CondVar changed_;
  uint64_t open_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

absl::StatusOr<std::vector<Measurement>> ByteWaitMeasurements(const Programs& programs) {
  constexpr uint64_t kTurns = 300;
  std::vector<Measurement> measurements;
  for (const uint32_t devices : {1u, 8u}) {
    BERTH_ASSIGN_OR_RETURN(const auto full, FullDevices::Start(programs, devices));
    BERTH_ASSIGN_OR_RETURN(const auto empty, FullDevices::Start(programs, devices));
    BERTH_RETURN_IF_ERROR(full->Ask(kPerDevice));
    Pairs pairs;
    for (uint64_t i = 0; i < kTurns; ++i) {
      BERTH_ASSIGN_OR_RETURN(pairs.ours.emplace_back(), full->AllocateAndFree());
      BERTH_ASSIGN_OR_RETURN(pairs.theirs.emplace_back(), empty->AllocateAndFree());
    }
    measurements.push_back(ComparePairs(absl::StrCat("another's block beside ", kPerDevice * devices,
                                                     " requests for bytes", devices > 1 ? ", 8 devices" : ""),
                                        pairs, "us", "none waits", kBound));
  }
  return measurements;
}

}  // namespace berth::bench
