#include "tests/support/actor/actor_churn.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <utility>

#include <berth/error.h>
#include <berth/launch_recorder.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace berth::testing {
namespace {

// Most uses by which the thread runs ahead of its streams.
constexpr uint64_t kAhead = 16;

std::span<uint32_t> NumbersOf(const Mapping& mapping) {
  return {static_cast<uint32_t*>(mapping.data()), 1024};
}

}  // namespace

Churn::Churn(Mapping mapping, std::vector<std::shared_ptr<Stream>> streams, uint64_t uses)
    : mapping_(std::move(mapping)), streams_(std::move(streams)), thread_([this, uses] { Run(uses); }) {}

absl::Status Churn::UseOnce(Stream& stream) {
  LaunchRecorder launch(stream);
  launch.ReadWrite(mapping_);
  BERTH_RETURN_IF_ERROR(launch.Preflight());
  BERTH_RETURN_IF_ERROR(stream.Enqueue([this, numbers = NumbersOf(mapping_)] {
    // Accesses whole words atomically: ThreadSanitizer does not see the pages and processes that order two uses.
    const uint32_t before = std::atomic_ref(numbers.front()).load(std::memory_order_relaxed);
    for (uint32_t& each : numbers) {
      const std::atomic_ref number(each);
      if (number.load(std::memory_order_relaxed) != before) wrong_.fetch_add(1);
      number.store(before + 1, std::memory_order_relaxed);
    }
  }));
  return launch.Commit();
}

void Churn::Run(uint64_t uses) {
  while (!stop_ && made_ < uses && status_.ok()) {
    const absl::Status used = UseOnce(*streams_[made_ % streams_.size()]);
    // Another client's use was open for longer than the wait: retry.
    if (IsRefusal(used, Reason::kBlockInUse)) continue;
    status_ = used;
    made_ += used.ok() ? 1 : 0;
    if (made_ % kAhead != 0) continue;
    for (const auto& stream : streams_) status_.Update(stream->Synchronize());
  }
  for (const auto& stream : streams_) status_.Update(stream->Synchronize());
}

absl::StatusOr<uint64_t> Churn::Await() {
  if (thread_.joinable()) thread_.join();
  BERTH_RETURN_IF_ERROR(status_);
  if (wrong_ > 0) return absl::DataLossError(absl::StrCat(wrong_.load(), " numbers are not as the first"));
  return made_.load();
}

absl::StatusOr<uint64_t> Churn::Stop() {
  stop_ = true;
  return Await();
}

absl::StatusOr<uint64_t> Churn::Count(const Mapping& mapping) {
  const std::span<uint32_t> numbers = NumbersOf(mapping);
  const auto read = [](uint32_t& number) { return std::atomic_ref(number).load(std::memory_order_relaxed); };
  const uint32_t first = read(numbers.front());
  if (std::all_of(numbers.begin(), numbers.end(), [&](uint32_t& number) { return read(number) == first; })) {
    return first;
  }
  return absl::DataLossError("the block holds more than one number");
}

absl::StatusOr<uint64_t> Churn::CountInUse(const Mapping& mapping, Stream& stream) {
  while (true) {
    LaunchRecorder launch(stream);
    launch.Read(mapping);
    const absl::Status begun = launch.Preflight();
    // Another client's use was open for longer than the wait: retry.
    if (IsRefusal(begun, Reason::kBlockInUse)) continue;
    BERTH_RETURN_IF_ERROR(begun);
    absl::StatusOr<uint64_t> count = absl::UnavailableError("the stream did not read the block");
    absl::Status done = stream.Enqueue([&] { count = Count(mapping); });
    done.Update(launch.Commit());
    // The stream refers to `count` until then.
    done.Update(stream.Synchronize());
    BERTH_RETURN_IF_ERROR(done);
    return count;
  }
}

}  // namespace berth::testing
