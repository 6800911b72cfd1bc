#include "tests/bench/quiet.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/status_macros.h"

namespace berth::bench {

absl::Status AwaitQuiet(const Inspector& inspector, Bytes warm) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (true) {
    BERTH_ASSIGN_OR_RETURN(const v1::Usage usage, inspector.GetUsage());
    if (usage.devices_size() == 0) return absl::NotFoundError("the daemon has no device");
    const v1::ByteCounts& bytes = usage.devices(0).bytes();
    if (bytes.warm() == warm.count() && bytes.reserved() == 0 && bytes.retired() == 0 &&
        bytes.quarantined() == 0) {
      return absl::OkStatus();
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("device 0 does not come to rest with ", warm.count(),
                                                      " bytes warm: ", bytes.ShortDebugString()));
    }
  }
}

}  // namespace berth::bench
