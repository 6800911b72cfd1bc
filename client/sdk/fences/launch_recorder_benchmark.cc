// Measures the cost of preparing and finishing a launch beyond the driver's calls, on streams that do nothing.
//
//   bazel run -c opt //client/sdk/fences:launch_recorder_benchmark

#include <memory>
#include <utility>

#include <berth/launch_recorder.h>
#include <berth/stream.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmark/benchmark.h"
#include "client/sdk/fences/fences.h"
#include "client/sdk/fences/stream_backend.h"
#include "client/sdk/fences/testing/launch_recorder_peer.h"
#include "common/os/memfd.h"

namespace berth {

namespace {

using internal::Fences;
using internal::MappedPage;
using internal::OpenedStream;
using internal::RemotePrepared;
using internal::RemoteUse;
using internal::StreamEvent;
using internal::UseAccess;

class NoDaemon final : public internal::FenceDaemon {
 public:
  explicit NoDaemon(Fences* fences) : fences_(*fences) {}
  ChannelId channel() const override { return ChannelId(1); }
  bool over() const override { return false; }
  absl::StatusOr<OpenedStream> OpenStream(uint32_t, bool) override {
    if (fences_.pages.own() == nullptr) {
      const absl::Status set = fences_.pages.SetOwn(*CreateFencePage(ChannelId(1)));
      if (!set.ok()) return set;
    }
    return OpenedStream{.slot = opened_++, .id = opened_};
  }
  void CloseStream(uint32_t) override {}
  absl::StatusOr<RemotePrepared> Prepare(uint32_t, absl::Span<const RemoteUse>, absl::Duration) override {
    return absl::UnimplementedError("no process shares a block");
  }
  absl::StatusOr<std::vector<BlockId>> Finish(UseId, uint64_t) override {
    return absl::UnimplementedError("no process shares a block");
  }
  void Abandon(UseId) override {}

 private:
  Fences& fences_;
  uint32_t opened_ = 0;
};

class NoBackend final : public internal::StreamBackend {
 public:
  NoBackend() : StreamBackend(internal::StreamKind::kHost) {}
  absl::Status CheckSupport() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<StreamEvent>> CreateEvent() override {
    return std::make_unique<StreamEvent>();
  }
  absl::Status Record(StreamEvent&) override { return absl::OkStatus(); }
  absl::Status WaitEvent(StreamEvent&) override { return absl::OkStatus(); }
  absl::Status Wait(MappedPage&, uint32_t, uint64_t) override { return absl::OkStatus(); }
  absl::Status Write(MappedPage&, uint32_t, uint64_t) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Reached(StreamEvent&) override { return true; }
  absl::Status Publish(StreamEvent&, MappedPage&, uint32_t, uint64_t) override { return absl::OkStatus(); }
  absl::Status Enqueue(std::function<void()>) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

struct Stage {
  Stage() {
    fences->daemon = std::make_unique<NoDaemon>(fences.get());
    fences->tracker.SetSender([](const attach::HandedOver&) {});
    for (auto& stream : streams) stream = *Stream::Open(fences, std::make_unique<NoBackend>(), {});
    block = fences->tracker.Track(BlockId(10), /*shared=*/false);
  }
  // Returns whether the launch succeeded.
  bool Use(Stream& stream, UseAccess access) {
    LaunchRecorder launch(stream);
    LaunchRecorderPeer::RecordUse(launch, {.fences = fences.get(), .block = block.get(), .lease = &lease}, access);
    return launch.Preflight().ok() && launch.Commit().ok();
  }

  std::shared_ptr<Fences> fences = std::make_shared<Fences>();
  internal::AtomicLease lease = internal::Lease::kLive;
  std::shared_ptr<internal::TrackedBlock> block;
  std::shared_ptr<Stream> streams[2];
};

// `state.range(0)` streams write a block in turn.
void BM_PrepareAndFinish(benchmark::State& state) {
  Stage stage;
  for (size_t i = 0; auto _ : state) {
    if (!stage.Use(*stage.streams[i], UseAccess::kReadWrite)) state.SkipWithError("a launch failed");
    i = (i + 1) % static_cast<size_t>(state.range(0));
  }
}
BENCHMARK(BM_PrepareAndFinish)->ArgName("streams")->Arg(1)->Arg(2);

}  // namespace
}  // namespace berth

BENCHMARK_MAIN();
