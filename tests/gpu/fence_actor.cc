// fence_actor: a client process with CUDA streams whose work on blocks is ordered by fences. It reads commands from
// standard input, one per line, and answers each on standard output (tests/support/actor/actor_wire.h). It ends at the
// end of its input.
//
//   session                    its session's id
//   allocate B BYTES           import B HANDLE [ro]       grant-session B SESSION     drop B
//   stream S                   opens a CUDA stream
//   fill S B SEED [raw]        check S B SEED [raw]       spin S B        fault S B       pass S B
//                              each is one use of the block, or none where it is raw; answers "torn" if it was torn.
//                              A fill waits behind a gate; a spin's kernel runs until a gate is opened
//   open S                     opens the oldest gate
//   sync S                     waits for the stream; answers how many wrong words its checks have seen
//   words PATH                 registers a page of values for `answer`
//   answer S COUNT AFTER       COUNT times: waits for the page's first value, writes the value 64 bytes further; each
//                              is 1 above the last

#include <fcntl.h>
#include <sys/mman.h>

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/block_handle.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"
#include "tests/gpu/fenced_stream.h"
#include "tests/support/actor/actor_wire.h"

namespace berth::gpu {
namespace {

using Answer = absl::StatusOr<std::string>;
using Words = std::vector<std::string>;

constexpr uint64_t kSecondValue = 64;

absl::StatusOr<uint64_t> Number(const std::string& word) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(word, &number)) return absl::InvalidArgumentError(absl::StrCat("no number: ", word));
  return number;
}

Answer Said(const absl::Status& status) {
  if (!status.ok()) return status;
  return "";
}

class FenceActor {
 public:
  explicit FenceActor(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  Answer Do(const std::string& line) {
    Words words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    words.resize(5);
    const std::string& verb = words[0];
    if (verb == "session") return absl::StrCat(session_->id().value());
    if (verb == "allocate" || verb == "import") return Hold(words);
    if (verb == "grant-session" || verb == "drop") return DoWithBlock(words);
    if (verb == "stream") {
      BERTH_ASSIGN_OR_RETURN(fenced_streams_[words[1]], FencedStream::Open(session_));
      return "";
    }
    if (verb == "words") return Said(RegisterValues(words[1]));
    const auto fenced = fenced_streams_.find(words[1]);
    if (fenced == fenced_streams_.end()) return absl::NotFoundError(line);
    if (verb == "answer") return Said(QueueAnswers(*fenced->second, words));
    if (verb == "sync") {
      BERTH_ASSIGN_OR_RETURN(const uint64_t wrong, fenced->second->Sync());
      return absl::StrCat(wrong);
    }
    if (verb == "open") {
      fenced->second->OpenGate();
      return "";
    }
    return Queue(*fenced->second, words);
  }

 private:
  struct Held {
    Block block;
    Mapping mapping;
  };

  Answer Hold(const Words& words) {
    absl::StatusOr<Block> block = absl::UnknownError("");
    if (words[0] == "allocate") {
      BERTH_ASSIGN_OR_RETURN(const uint64_t bytes, Number(words[2]));
      block = Block::Allocate(session_, {.bytes = Bytes(bytes), .label = words[1]});
    } else {
      BERTH_ASSIGN_OR_RETURN(const BlockHandle handle, ParseHandle(words[2]));
      block = Block::Import(session_, handle, {.read_only = words[3] == "ro"});
    }
    BERTH_RETURN_IF_ERROR(block.status());
    BERTH_ASSIGN_OR_RETURN(Mapping mapping, block->Map());
    const std::string handle = FormatHandle(block->handle());
    held_.insert_or_assign(words[1], Held{.block = *std::move(block), .mapping = std::move(mapping)});
    return handle;
  }

  Answer DoWithBlock(const Words& words) {
    const auto held = held_.find(words[1]);
    if (held == held_.end()) return absl::NotFoundError(words[1]);
    if (words[0] == "drop") return held_.erase(held), "";
    BERTH_ASSIGN_OR_RETURN(const uint64_t session, Number(words[2]));
    return Said(held->second.block.GrantToSession(SessionId(session)));
  }

  Answer Queue(FencedStream& fenced, const Words& words) {
    const auto held = held_.find(words[2]);
    if (held == held_.end()) return absl::NotFoundError(words[2]);
    const Mapping& mapping = held->second.mapping;
    uint64_t seed = 0;
    if (words[0] == "fill" || words[0] == "check") {
      BERTH_ASSIGN_OR_RETURN(seed, Number(words[3]));
    }
    const auto work = [&]() -> absl::Status {
      if (words[0] == "pass") return absl::OkStatus();
      if (words[0] == "spin") return fenced.QueueSpin();
      if (words[0] == "fault") return fenced.QueueFault();
      if (words[0] == "check") return fenced.QueueCheck(mapping, seed);
      if (words[0] != "fill") return absl::InvalidArgumentError(words[0]);
      BERTH_RETURN_IF_ERROR(fenced.QueueGate());
      return fenced.QueueFill(mapping, seed);
    };
    if (words[4] == "raw") return Said(work());
    auto use = FencedStream::Use::kWrite;
    if (words[0] == "check") use = FencedStream::Use::kRead;
    if (words[0] == "pass") use = FencedStream::Use::kReadWrite;
    BERTH_ASSIGN_OR_RETURN(const bool torn, fenced.Queue(use, mapping, work));
    return torn ? "torn" : "";
  }

  absl::Status RegisterValues(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (page == MAP_FAILED) return absl::NotFoundError(path);
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
    BERTH_ASSIGN_OR_RETURN(values_, driver->RegisterHostMemory(page, Bytes(4096), /*read_only=*/false));
    return absl::OkStatus();
  }

  absl::Status QueueAnswers(FencedStream& fenced, const Words& words) {
    BERTH_ASSIGN_OR_RETURN(const uint64_t count, Number(words[2]));
    BERTH_ASSIGN_OR_RETURN(const uint64_t after, Number(words[3]));
    for (uint64_t value = after + 1; value <= after + count; ++value) {
      BERTH_RETURN_IF_ERROR(fenced.driver().WaitValue64(fenced.stream(), values_, value));
      BERTH_RETURN_IF_ERROR(fenced.driver().WriteValue64(fenced.stream(), values_ + kSecondValue, value));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<Session> session_;
  cuda::DevicePointer values_ = 0;
  std::map<std::string, Held> held_;
  // Destroyed first: no work runs on unmapped memory.
  std::map<std::string, std::unique_ptr<FencedStream>> fenced_streams_;
};

}  // namespace
}  // namespace berth::gpu

int main() {
  const absl::StatusOr<std::shared_ptr<berth::Session>> session =
      berth::Session::Open({.label = "fence_actor"});
  if (!session.ok()) {
    std::cerr << "fence_actor: " << session.status() << "\n";
    return 1;
  }
  berth::gpu::FenceActor actor(*session);
  std::string line;
  while (std::getline(std::cin, line)) std::cout << berth::testing::EncodeAnswer(actor.Do(line)) << std::endl;
  return 0;
}
