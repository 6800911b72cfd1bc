#include "tests/replay/replay.h"

#include <algorithm>
#include <set>
#include <utility>

#include <berth/error.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/memory.pb.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace berth::replay {
namespace {

class Replayer {
 public:
  explicit Replayer(MemoryResource& resource) : resource_(resource) {}

  void Take(const v1::LogRecord& record) {
    ++result_.records;
    if (!record.error().empty()) return;
    if (record.action() == v1::LogRecord::ALLOCATE) Allocate(record);
    if (record.action() == v1::LogRecord::RELEASE) Release(record.block_generation());
  }

  Result Finish() && {
    result_.left = resource_.outstanding();
    EndIncarnation();
    return std::move(result_);
  }

  void RecordMissing(uint64_t count) { result_.missing += count; }

  // Releases the blocks of an ended broker incarnation.
  void EndIncarnation() {
    for (auto& [generation, block] : blocks_) {
      if (const absl::Status status = resource_.Deallocate(block); !status.ok()) RecordFailure(status);
    }
    blocks_.clear();
    failed_.clear();
  }

 private:
  void Allocate(const v1::LogRecord& record) {
    // Another backend may have coarser blocks.
    const std::optional<Bytes> bytes = Bytes(record.bytes()).RoundUp(resource_.granularity());
    const absl::Time start = absl::Now();
    absl::StatusOr<MemoryBlock> block =
        bytes.has_value() ? resource_.Allocate(*bytes, record.label())
                          : absl::StatusOr<MemoryBlock>(absl::OutOfRangeError("too many bytes"));
    result_.allocate_times.push_back(absl::Now() - start);
    if (!block.ok()) {
      ++result_.failed_allocations;
      RecordFailure(block.status());
      failed_.insert(record.block_generation());
      return;
    }
    ++result_.allocations;
    blocks_[record.block_generation()] = *std::move(block);
    result_.peak = std::max(result_.peak, resource_.outstanding());
  }

  void Release(uint64_t generation) {
    if (failed_.erase(generation) > 0) return;
    const auto found = blocks_.find(generation);
    if (found == blocks_.end()) {
      ++result_.unknown_releases;
      return;
    }
    const absl::Time start = absl::Now();
    const absl::Status status = resource_.Deallocate(found->second);
    result_.release_times.push_back(absl::Now() - start);
    if (!status.ok()) {
      ++result_.failed_releases;
      return RecordFailure(status);
    }
    ++result_.releases;
    blocks_.erase(found);
  }

  // Records the first failure of each kind.
  void RecordFailure(const absl::Status& status) {
    const std::optional<ErrorDetails> details = GetErrorDetails(status);
    const std::string kind = details.has_value() ? std::string(ReasonName(details->reason))
                                                 : absl::StatusCodeToString(status.code());
    if (kinds_.insert(kind).second) {
      result_.failures.push_back(absl::StrCat(kind, ": ", std::string(status.message())));
    }
  }

  MemoryResource& resource_;
  Result result_;
  absl::flat_hash_map<uint64_t, MemoryBlock> blocks_;
  std::set<uint64_t> failed_;
  std::set<std::string> kinds_;
};

}  // namespace

absl::StatusOr<Result> Replay(std::istream& log, uint32_t device, MemoryResource& resource) {
  Replayer replayer(resource);
  uint64_t count = 0;
  uint64_t last = 0;
  uint64_t incarnation = 0;
  for (std::string line; std::getline(log, line);) {
    ++count;
    if (line.empty()) continue;
    v1::LogRecord record;
    if (!google::protobuf::util::JsonStringToMessage(line, &record).ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", count, " is no record of the log"));
    }
    // A new incarnation starts its numbers at 1.
    if (incarnation != 0 && record.incarnation() != incarnation) {
      replayer.EndIncarnation();
      last = 0;
    }
    incarnation = record.incarnation();
    if (last != 0 && record.number() > last + 1) replayer.RecordMissing(record.number() - last - 1);
    last = record.number();
    if (record.device() == device) replayer.Take(record);
  }
  return std::move(replayer).Finish();
}

}  // namespace berth::replay
