#include <berth/bandwidth.h>

#include <string.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include <berth/block.h>

#include "client/sdk/devices/device_choice.h"
#include "common/cuda/current_context.h"
#include "common/cuda/driver.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth {
namespace {

constexpr int kFills = 8;

// Returns the shortest duration of `fill`, after one unmeasured warm-up run. Disturbances only add time.
absl::StatusOr<absl::Duration> Fastest(const std::function<absl::Status()>& fill) {
  absl::Duration least = absl::InfiniteDuration();
  for (int i = 0; i <= kFills; ++i) {
    const absl::Time start = SteadyNow();
    BERTH_RETURN_IF_ERROR(fill());
    if (i > 0) least = std::min(least, SteadyNow() - start);
  }
  return std::max(least, absl::Nanoseconds(1));
}

absl::StatusOr<absl::Duration> FillOnGpu(cuda::Driver& driver, int ordinal, const Mapping& mapping) {
  const auto at = reinterpret_cast<cuda::DevicePointer>(mapping.data());
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver.RetainPrimaryContext(ordinal));
  absl::StatusOr<absl::Duration> took = absl::UnknownError("");
  {
    const absl::StatusOr<cuda::CurrentContext> current = cuda::CurrentContext::Enter(driver, context);
    took = !current.ok() ? current.status() : Fastest([&]() -> absl::Status {
      BERTH_RETURN_IF_ERROR(driver.Fill(at, 0, Bytes(mapping.size())));
      return driver.SynchronizeContext();
    });
  }
  const absl::Status released = driver.ReleasePrimaryContext(ordinal);
  if (took.ok() && !released.ok()) return released;
  return took;
}

absl::StatusOr<absl::Duration> FillOnHost(const Mapping& mapping) {
  return Fastest([&] {
    memset(mapping.data(), 0, mapping.size());
    // The memory is never read: hide that from the compiler.
    asm volatile("" : : "r"(mapping.data()) : "memory");
    return absl::OkStatus();
  });
}

absl::StatusOr<double> MeasureOne(const std::shared_ptr<Session>& session, const std::string& uuid,
                                  Bytes bytes) {
  BERTH_ASSIGN_OR_RETURN(
      const Block block,
      Block::Allocate(session, {.bytes = bytes, .device_uuid = uuid, .label = "bandwidth"}));
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
  absl::Duration took;
  if (block.kind() == BlockKind::kHost) {
    BERTH_ASSIGN_OR_RETURN(took, FillOnHost(mapping));
  } else {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
    BERTH_ASSIGN_OR_RETURN(const int ordinal, internal::ChooseDevice(*driver, uuid, /*wanted=*/""));
    BERTH_ASSIGN_OR_RETURN(took, FillOnGpu(*driver, ordinal, mapping));
  }
  return static_cast<double>(mapping.size()) / absl::ToDoubleSeconds(took);
}

}  // namespace

absl::StatusOr<std::vector<double>> MeasureBandwidth(const std::shared_ptr<Session>& session,
                                                     const std::vector<std::string>& uuids, Bytes bytes) {
  std::vector<double> measured;
  for (const std::string& uuid : uuids) {
    BERTH_ASSIGN_OR_RETURN(measured.emplace_back(), MeasureOne(session, uuid, bytes));
  }
  return measured;
}

}  // namespace berth
