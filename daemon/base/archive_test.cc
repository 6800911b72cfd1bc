#include "daemon/base/archive.h"

#include <deque>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

enum class Colour : uint32_t { kRed = 1, kBlue = 7 };
constexpr auto ArchivedValues(Colour) { return std::pair(Colour::kRed, Colour::kBlue); }

struct Inner {
  std::string name;
  std::optional<Bytes> bytes;
  friend bool operator==(const Inner&, const Inner&) = default;
};
template <typename Archive>
void Fields(Archive& archive, Inner& inner) {
  archive(inner.name, inner.bytes);
}

struct Outer {
  SessionId session;
  Secret secret;
  Colour colour = Colour::kRed;
  bool set = false;
  double weight = 0;
  absl::Time at;
  absl::Time never = absl::InfiniteFuture();
  absl::Duration pause;
  std::vector<Inner> inners;
  std::map<uint32_t, std::set<ImportId>> imports;
  std::deque<std::pair<uint64_t, std::string>> queue;
  std::variant<std::monostate, Inner, uint64_t> what;
  absl::StatusOr<Inner> good = Inner{};
  absl::StatusOr<Inner> bad = Inner{};
  friend bool operator==(const Outer&, const Outer&) = default;
};
template <typename Archive>
void Fields(Archive& archive, Outer& outer) {
  archive(outer.session, outer.secret, outer.colour, outer.set, outer.weight, outer.at, outer.never, outer.pause,
          outer.inners, outer.imports, outer.queue, outer.what, outer.good, outer.bad);
}

Outer Sample() {
  Outer outer;
  outer.session = SessionId(12);
  outer.secret.bits[3] = 9;
  outer.colour = Colour::kBlue;
  outer.set = true;
  outer.weight = 0.25;
  outer.at = absl::FromUnixNanos(1'700'000'000'123'456'789);
  outer.pause = -absl::InfiniteDuration();
  outer.inners = {{"one", MiB(2)}, {"", std::nullopt}};
  outer.imports = {{3, {ImportId(1), ImportId(5)}}, {4, {}}};
  outer.queue = {{1, "a"}, {2, std::string("\0b", 2)}};
  outer.what = Inner{"held", Bytes(1)};
  outer.good = Inner{"good", Bytes(2)};
  absl::Status status = absl::NotFoundError("nothing");
  status.SetPayload("type", absl::Cord("why"));
  outer.bad = status;
  return outer;
}

TEST(ArchiveTest, ValueIsReadBackUnchanged) {
  const Outer written = Sample();
  std::string bytes;
  ArchiveWriter writer(&bytes);
  writer(written);
  Outer read;
  ASSERT_TRUE(ReadArchive(bytes, &read).ok());
  EXPECT_EQ(read, written);
}

TEST(ArchiveTest, TruncatedOrExcessBytesAreDataLoss) {
  std::string bytes;
  ArchiveWriter writer(&bytes);
  writer(Sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    Outer read;
    EXPECT_EQ(ReadArchive(absl::string_view(bytes).substr(0, size), &read).code(), absl::StatusCode::kDataLoss)
        << size;
  }
  Outer read;
  EXPECT_EQ(ReadArchive(bytes + "x", &read).code(), absl::StatusCode::kDataLoss);
}

TEST(ArchiveTest, OverlongLengthReadsNothing) {
  std::string bytes;
  ArchiveWriter writer(&bytes);
  writer(UINT32_MAX, uint64_t{0});
  std::vector<std::string> read;
  EXPECT_EQ(ReadArchive(bytes, &read).code(), absl::StatusCode::kDataLoss);
  std::string text;
  EXPECT_EQ(ReadArchive(bytes, &text).code(), absl::StatusCode::kDataLoss);
}

TEST(ArchiveTest, UnknownEnumeratorIsDataLoss) {
  for (const uint32_t number : {0u, 8u, UINT32_MAX}) {
    std::string bytes;
    ArchiveWriter writer(&bytes);
    writer(number);
    Colour read = Colour::kBlue;
    EXPECT_EQ(ReadArchive(bytes, &read).code(), absl::StatusCode::kDataLoss) << number;
    EXPECT_EQ(read, Colour::kBlue);
  }
}

TEST(ArchiveTest, UnknownAlternativeOrBoolIsDataLoss) {
  std::string bytes;
  ArchiveWriter writer(&bytes);
  writer(uint32_t{3});
  std::variant<std::monostate, uint64_t> read;
  EXPECT_EQ(ReadArchive(bytes, &read).code(), absl::StatusCode::kDataLoss);
  bool flag = false;
  EXPECT_EQ(ReadArchive("\2", &flag).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace berth
