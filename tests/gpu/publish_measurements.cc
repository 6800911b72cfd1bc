#include "tests/gpu/publish_measurements.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <berth/block.h>
#include <berth/bytes.h>
#include <berth/session.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/verbs/publish.h"
#include "client/sdk/memory/registered_memory.h"
#include "common/cuda/driver.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "tests/bench/statistics.h"
#include "tests/bench/stopwatch.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::gpu {
namespace {

using bench::Measurement;
using bench::Microseconds;

constexpr Bytes kSize = GiB(8);
constexpr int kRounds = 7;
// The time at 20 GB/s.
constexpr double kMostMilliseconds = kSize.count() / 20e9 * 1e3;

// A safetensors file with a header and kSize bytes, in the page cache.
class WeightsFile {
 public:
  static absl::StatusOr<WeightsFile> Make() {
    // In memory, where the container has enough; otherwise on disk, where writing leaves it in the page cache.
    struct statvfs shm;
    const bool in_memory =
        ::statvfs("/dev/shm", &shm) == 0 && uint64_t{shm.f_bavail} * shm.f_frsize > kSize.count() + GiB(1).count();
    WeightsFile file(absl::StrCat(in_memory ? "/dev/shm" : "/tmp", "/berth-publish-", ::getpid(), ".safetensors"));
    constexpr uint64_t kTensors = 64;
    std::string header = "{";
    for (uint64_t i = 0; i < kTensors; ++i) {
      const uint64_t bytes = kSize.count() / kTensors;
      absl::StrAppendFormat(&header, "%s\"w%d\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}",
                            i == 0 ? "" : ",", i, bytes, i * bytes, (i + 1) * bytes);
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    std::string piece(16 << 20, '\0');
    for (size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<char>(i * 7 + i / 4096);
    std::ofstream out(file.path_, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof(length));
    out << header;
    for (uint64_t done = 0; done < kSize.count(); done += piece.size()) out << piece;
    out.close();
    if (!out) return absl::ResourceExhaustedError(absl::StrCat("cannot write ", file.path_));
    return file;
  }
  WeightsFile(WeightsFile&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  WeightsFile& operator=(WeightsFile&&) = delete;
  ~WeightsFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  explicit WeightsFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Transfers as many bytes over the link, from one pinned buffer.
absl::StatusOr<double> LinkMilliseconds(cuda::Driver& driver) {
  constexpr Bytes kBuffer = MiB(256);
  void* const buffer =
      ::mmap(nullptr, kBuffer.count(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) return OsError("mmap", errno);
  memset(buffer, 1, kBuffer.count());
  const absl::StatusOr<double> taken = [&]() -> absl::StatusOr<double> {
    BERTH_ASSIGN_OR_RETURN(const internal::RegisteredMemory pinned,
                           internal::RegisteredMemory::Register(driver, buffer, kBuffer, /*read_only=*/false));
    BERTH_ASSIGN_OR_RETURN(const cuda::DevicePointer to, driver.Allocate(kBuffer));
    BERTH_ASSIGN_OR_RETURN(const cuda::Stream stream, driver.CreateStream());
    const absl::StatusOr<double> time = Microseconds([&]() -> absl::Status {
      for (uint64_t done = 0; done < kSize.count(); done += kBuffer.count()) {
        BERTH_RETURN_IF_ERROR(driver.CopyToDeviceAsync(
            to, std::span<const std::byte>(static_cast<const std::byte*>(buffer), kBuffer.count()), stream));
      }
      return driver.SynchronizeStream(stream);
    });
    BERTH_RETURN_IF_ERROR(driver.DestroyStream(stream));
    BERTH_RETURN_IF_ERROR(driver.Free(to));
    return time;
  }();
  ::munmap(buffer, kBuffer.count());
  if (!taken.ok()) return taken;
  return *taken / 1e3;
}

// Compares the published block "w" with the file, byte by byte.
absl::Status CheckPublished(const std::shared_ptr<Session>& session, const WeightsFile& file, cuda::Driver& driver) {
  BERTH_ASSIGN_OR_RETURN(const Block block, Block::ImportPublished(session, "w"));
  BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
  const auto start = reinterpret_cast<cuda::DevicePointer>(mapping.data());
  std::ifstream in(file.path(), std::ios::binary);
  std::vector<char> expected(MiB(64).count()), piece(expected.size());
  uint64_t done = 0;
  while (in.read(expected.data(), static_cast<std::streamsize>(expected.size())), in.gcount() > 0) {
    const auto size = static_cast<size_t>(in.gcount());
    BERTH_RETURN_IF_ERROR(driver.CopyToHost(std::as_writable_bytes(std::span(piece).first(size)), start + done));
    if (!std::equal(piece.begin(), piece.begin() + static_cast<ptrdiff_t>(size), expected.begin())) {
      return absl::DataLossError(absl::StrCat("the published block differs from the file after byte ", done));
    }
    done += size;
  }
  return done > kSize.count() ? absl::OkStatus() : absl::DataLossError(absl::StrCat("read ", done, " bytes"));
}

// Returns the times that tests/gpu/torch_load.py reports, in milliseconds; none where it skips.
std::vector<double> TorchMilliseconds(const std::string& path) {
  testing::Subprocess python = testing::Subprocess::Start(
      {.argv = {"/usr/bin/env", "python3", testing::ProgramPath("tests/gpu/torch_load.py"), path}});
  std::vector<double> taken;
  for (auto line = python.ReadLine(absl::Minutes(2)); line.ok(); line = python.ReadLine(absl::Minutes(2))) {
    double milliseconds = 0;
    if (absl::SimpleAtod(*line, &milliseconds)) {
      taken.push_back(milliseconds);
    } else {
      std::cout << *line << "\n";
    }
  }
  if (const int code = python.Wait(); code != 0) std::cout << "-- skipped: torch_load.py ended with " << code << "\n";
  return taken;
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> PublishMeasurements(const bench::Programs& programs) {
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  constexpr int kOrdinal = 0;
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver->RetainPrimaryContext(kOrdinal));
  BERTH_RETURN_IF_ERROR(driver->SetCurrentContext(context));
  BERTH_ASSIGN_OR_RETURN(const WeightsFile file, WeightsFile::Make());
  BERTH_ASSIGN_OR_RETURN(const std::unique_ptr<bench::Server> daemon,
                         bench::StartDaemon(programs, {"--device-budget=20GiB"}));
  BERTH_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                         Session::Open({.folder = daemon->folder(), .label = "bench"}));
  std::vector<double> ours, command, link;
  for (int round = 0; round <= kRounds; ++round) {
    const cli::Publication publication = {.name = "w", .path = file.path(), .device = "0"};
    BERTH_ASSIGN_OR_RETURN(const double published,
                           Microseconds([&] { return cli::PublishFile(session, publication).status(); }));
    BERTH_RETURN_IF_ERROR(Block::Unpublish(session, "w"));
    BERTH_ASSIGN_OR_RETURN(const double whole, Microseconds([&]() -> absl::Status {
                             testing::Subprocess berth = testing::Subprocess::Start(
                                 {.argv = {testing::ProgramPath("client/cli/berth"), "--folder", daemon->folder(),
                                           "blocks", "publish", "--device", "0", "w", file.path()}});
                             const int code = berth.Wait(absl::Minutes(1));
                             return code == 0 ? absl::OkStatus()
                                              : absl::InternalError(absl::StrCat("berth ended with ", code));
                           }));
    if (round == 0) BERTH_RETURN_IF_ERROR(CheckPublished(session, file, *driver));
    BERTH_RETURN_IF_ERROR(Block::Unpublish(session, "w"));
    BERTH_ASSIGN_OR_RETURN(const double by_link, LinkMilliseconds(*driver));
    // Drops the first round, which warms up.
    if (round == 0) continue;
    ours.push_back(published / 1e3);
    command.push_back(whole / 1e3);
    link.push_back(by_link);
  }
  const std::string size = FormatBytes(kSize);
  std::vector<Measurement> measurements;
  Measurement by_us = bench::ComparePairs(absl::StrCat("publish ", size, ": open to the name, 20 GB/s or more"),
                                          {ours, link}, "ms", "pinned H2D of as much", std::nullopt);
  // The bound applies to the time, not to the ratio.
  measurements.push_back({.name = by_us.name, .value = by_us.value, .unit = "ms", .bound = kMostMilliseconds});
  by_us.name = absl::StrCat("publish ", size, ": open to the name");
  measurements.push_back(by_us);
  measurements.push_back({.name = absl::StrCat("publish ", size, ": the whole command"),
                          .value = bench::Median(command),
                          .unit = "ms",
                          .bound = 1000});
  measurements.push_back({.name = absl::StrCat("pinned H2D of ", size), .value = bench::Median(link), .unit = "ms"});
  if (const std::vector<double> torch = TorchMilliseconds(file.path()); !torch.empty()) {
    measurements.push_back({.name = absl::StrCat("safetensors.torch.load_file of the same ", size),
                            .value = bench::Median(torch),
                            .unit = "ms"});
  }
  BERTH_RETURN_IF_ERROR(driver->ReleasePrimaryContext(kOrdinal));
  return measurements;
}

}  // namespace berth::gpu
