// ArchiveWriter and ArchiveReader: a value to bytes, and back, by one list of its fields.
//
//   template <typename Archive>
//   void Fields(Archive& archive, Permit& permit) {     // beside the type, in its namespace
//     archive(permit.id, permit.units, permit.holders);
//   }
//
//   std::string bytes;
//   ArchiveWriter(&bytes)(permit);
//   BERTH_RETURN_IF_ERROR(ReadArchive(bytes, &permit));
//
// An enumeration says beside itself which of its values are the first and the last:
//
//   constexpr auto ArchivedValues(Fruit) { return std::pair(Fruit::kApple, Fruit::kPear); }
//
// The bytes are those of one program on one machine: numbers as they lie in memory, containers behind their size. Times
// are kept to the nanosecond. What is read may be anybody's: every length is checked against what is there, and a value
// of an enumeration is one of its own.

#ifndef COMMON_ARCHIVE_H_
#define COMMON_ARCHIVE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "common/secret.h"

namespace berth {
namespace archive_internal {

template <typename T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;
// A std:: container with insert() at its end: vector, deque, list, set, map.
template <typename T>
concept Container = requires(T value) {
  typename T::value_type;
  value.insert(value.end(), std::declval<typename T::value_type>());
} && !std::is_same_v<T, std::string>;

// A container's element that can be assigned to: a map's has a key that cannot.
template <typename T>
struct Assignable {
  using Type = T;
};
template <typename K, typename V>
struct Assignable<std::pair<const K, V>> {
  using Type = std::pair<K, V>;
};

}  // namespace archive_internal

class ArchiveWriter {
 public:
  static constexpr bool kReads = false;

  // Appends to `out`, which stays the caller's.
  explicit ArchiveWriter(std::string* out) : out_(*out) {}

  template <typename... Ts>
  void operator()(const Ts&... values) {
    (Write(values), ...);
  }

 private:
  void Raw(const void* data, size_t size) { out_.append(static_cast<const char*>(data), size); }
  void Size(size_t size) { Write(static_cast<uint32_t>(size)); }

  template <archive_internal::Number T>
  void Write(const T& value) {
    Raw(&value, sizeof(value));
  }
  void Write(const std::string& text) {
    Size(text.size());
    Raw(text.data(), text.size());
  }
  template <typename Tag>
  void Write(const Id<Tag>& id) {
    Write(id.value());
  }
  void Write(const Bytes& bytes) { Write(bytes.count()); }
  void Write(const Secret& secret) { Write(secret.bits); }
  void Write(const absl::Duration& duration) { Write(absl::ToInt64Nanoseconds(duration)); }
  void Write(const absl::Time& time) { Write(time - absl::UnixEpoch()); }
  void Write(const std::monostate&) {}
  template <typename A, typename B>
  void Write(const std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T, size_t n>
  void Write(const std::array<T, n>& values) {
    for (const T& value : values) Write(value);
  }
  template <archive_internal::Container T>
  void Write(const T& values) {
    Size(values.size());
    for (const auto& value : values) Write(value);
  }
  template <typename T>
  void Write(const std::optional<T>& value) {
    Write(value.has_value());
    if (value.has_value()) Write(*value);
  }
  template <typename... Ts>
  void Write(const std::variant<Ts...>& value) {
    Write(static_cast<uint32_t>(value.index()));
    std::visit([this](const auto& held) { this->Write(held); }, value);
  }
  void Write(const absl::Status& status);
  template <typename T>
  void Write(const absl::StatusOr<T>& value) {
    Write(value.status());
    if (value.ok()) Write(*value);
  }
  // A list of fields is one for both ways, so it takes what may be changed; here nothing is.
  template <typename T>
    requires requires(ArchiveWriter& archive, T& value) { Fields(archive, value); }
  void Write(const T& value) {
    Fields(*this, const_cast<T&>(value));
  }

  std::string& out_;
};

// What is known of the program that wrote, where it is another one.
struct ArchiveOrigin {
  // Of the values, as its program counted: their fields may look at it. 0 is this program's own.
  uint32_t schema = 0;
  // Its times are read so much later: its clock began elsewhere.
  absl::Duration clock;
};

class ArchiveReader {
 public:
  static constexpr bool kReads = true;

  // `bytes` must outlive the reader.
  explicit ArchiveReader(absl::string_view bytes, const ArchiveOrigin& origin = {}) : bytes_(bytes), origin_(origin) {}

  // After a failure values stay as they are or become empty.
  template <typename... Ts>
  void operator()(Ts&... values) {
    (Read(values), ...);
  }
  // What was read breaks a rule that its type does not say.
  void Fail() { failed_ = true; }
  bool failed() const { return failed_; }
  uint32_t schema() const { return origin_.schema; }

  // OK if everything was there and nothing is left. Errors: kDataLoss.
  absl::Status Finish() const;

 private:
  bool Raw(void* data, size_t size) {
    if (failed_ || bytes_.size() < size) {
      failed_ = true;
      return false;
    }
    std::memcpy(data, bytes_.data(), size);
    bytes_.remove_prefix(size);
    return true;
  }
  // How many elements follow, each of at least one byte or of none: never more than there are bytes.
  size_t Size() {
    uint32_t size = 0;
    Read(size);
    if (size > bytes_.size()) failed_ = true;
    return failed_ ? 0 : size;
  }

  template <archive_internal::Number T>
  void Read(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      if (Raw(&byte, 1) && byte > 1) failed_ = true;
      value = byte == 1;
    } else if constexpr (std::is_enum_v<T> && !std::is_same_v<T, std::byte>) {
      std::underlying_type_t<T> number = 0;
      Read(number);
      const auto read = static_cast<T>(number);
      const auto [first, last] = ArchivedValues(read);
      if (read < first || last < read) failed_ = true;
      if (!failed_) value = read;
    } else {
      Raw(&value, sizeof(value));
    }
  }
  void Read(std::string& text) {
    const size_t size = Size();
    text.assign(bytes_.data(), size);
    bytes_.remove_prefix(size);
  }
  template <typename Tag>
  void Read(Id<Tag>& id) {
    uint64_t value = 0;
    Read(value);
    id = Id<Tag>(value);
  }
  void Read(Bytes& bytes) {
    uint64_t count = 0;
    Read(count);
    bytes = Bytes(count);
  }
  void Read(Secret& secret) { Read(secret.bits); }
  void Read(absl::Duration& duration) {
    int64_t nanoseconds = 0;
    Read(nanoseconds);
    duration = nanoseconds == INT64_MAX   ? absl::InfiniteDuration()
               : nanoseconds == INT64_MIN ? -absl::InfiniteDuration()
                                          : absl::Nanoseconds(nanoseconds);
  }
  void Read(absl::Time& time) {
    absl::Duration since;
    Read(since);
    time = absl::UnixEpoch() + since + origin_.clock;
  }
  void Read(std::monostate&) {}
  template <typename A, typename B>
  void Read(std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename T, size_t n>
  void Read(std::array<T, n>& values) {
    for (T& value : values) Read(value);
  }
  template <archive_internal::Container T>
  void Read(T& values) {
    values.clear();
    for (size_t left = Size(); left > 0 && !failed_; --left) {
      typename archive_internal::Assignable<typename T::value_type>::Type value{};
      Read(value);
      if (!failed_) values.insert(values.end(), std::move(value));
    }
  }
  template <typename T>
  void Read(std::optional<T>& value) {
    bool has = false;
    Read(has);
    value.reset();
    if (has && !failed_) Read(value.emplace());
  }
  template <typename... Ts>
  void Read(std::variant<Ts...>& value) {
    uint32_t index = 0;
    Read(index);
    if (index >= sizeof...(Ts)) failed_ = true;
    if (failed_) return;
    ReadAlternative(value, index, std::index_sequence_for<Ts...>());
  }
  template <typename Variant, size_t... indices>
  void ReadAlternative(Variant& value, uint32_t index, std::index_sequence<indices...>) {
    ((indices == index ? Read(value.template emplace<indices>()) : void()), ...);
  }
  void Read(absl::Status& status);
  template <typename T>
  void Read(absl::StatusOr<T>& value) {
    absl::Status status;
    Read(status);
    if (!status.ok() || failed_) {
      value = status.ok() ? absl::DataLossError("unreadable") : status;
      return;
    }
    T held{};
    Read(held);
    value = std::move(held);
  }
  template <typename T>
    requires requires(ArchiveReader& archive, T& value) { Fields(archive, value); }
  void Read(T& value) {
    Fields(*this, value);
  }

  absl::string_view bytes_;
  const ArchiveOrigin origin_;
  bool failed_ = false;
};

// Reads one value that is all of `bytes`. Errors: kDataLoss; `value` is of no use then.
template <typename T>
absl::Status ReadArchive(absl::string_view bytes, T* value) {
  ArchiveReader reader(bytes);
  reader(*value);
  return reader.Finish();
}

}  // namespace berth

#endif  // COMMON_ARCHIVE_H_
