// ArchiveWriter and ArchiveReader: convert a value to bytes and back by one list of its fields.
//
//   template <typename Archive>
//   void Fields(Archive& archive, Permit& permit) {     // next to the type, in its namespace
//     archive(permit.id, permit.units, permit.holders);
//   }
//
//   std::string bytes;
//   ArchiveWriter(&bytes)(permit);
//   BERTH_RETURN_IF_ERROR(ReadArchive(bytes, &permit));
//
// An enumeration declares its first and last value in a function next to the type:
//
//   constexpr auto ArchivedValues(Fruit) { return std::pair(Fruit::kApple, Fruit::kPear); }
//
// The bytes are valid for one program on one machine: numbers in memory representation, containers prefixed by their
// size. Times have nanosecond precision. The input may be untrusted: the reader checks every length against the bytes
// left, and rejects an enumeration value outside the declared range.

#ifndef DAEMON_BASE_ARCHIVE_H_
#define DAEMON_BASE_ARCHIVE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/secret.h"
#include "daemon/base/archive_origin.h"

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

// The element type of a container as an assignable type: a map's pair has a const key.
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

  // Appends to `out`, which the caller owns.
  explicit ArchiveWriter(std::string* out) : out_(*out) {}

  template <typename... Ts>
  void operator()(const Ts&... values) {
    (Write(values), ...);
  }
  // Appends fields that a later schema added; see ArchiveReader::Since().
  template <typename... Ts>
  void Since(uint32_t, const Ts&... values) {
    (*this)(values...);
  }
  // Appends the bytes of another writer.
  void Append(absl::string_view archived) { out_.append(archived.data(), archived.size()); }

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
  // Fields() serves both directions, so it takes a mutable reference; a writer changes nothing.
  template <typename T>
    requires requires(ArchiveWriter& archive, T& value) { Fields(archive, value); }
  void Write(const T& value) {
    Fields(*this, const_cast<T&>(value));
  }

  std::string& out_;
};

class ArchiveReader {
 public:
  static constexpr bool kReads = true;

  // `bytes` must outlive the reader.
  explicit ArchiveReader(absl::string_view bytes, const ArchiveOrigin& origin = {}) : bytes_(bytes), origin_(origin) {}

  // After a failure, values are unchanged or empty.
  template <typename... Ts>
  void operator()(Ts&... values) {
    (Read(values), ...);
  }
  // Reads fields that `schema` added. If the bytes have an earlier schema, the fields are unchanged.
  template <typename... Ts>
  void Since(uint32_t schema, Ts&... values) {
    if (origin_.schema == 0 || origin_.schema >= schema) (*this)(values...);
  }
  // Marks the input as invalid: a value breaks a rule that its type does not express.
  void Fail() { failed_ = true; }
  bool failed() const { return failed_; }
  uint32_t schema() const { return origin_.schema; }

  // Returns OK if all fields were read and no bytes are left. Errors: kDataLoss.
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
  // Returns the number of elements that follow; at most the number of bytes left.
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

// Reads one value that spans all of `bytes`. Errors: kDataLoss; `value` is then unspecified.
template <typename T>
absl::Status ReadArchive(absl::string_view bytes, T* value) {
  ArchiveReader reader(bytes);
  reader(*value);
  return reader.Finish();
}

}  // namespace berth

#endif  // DAEMON_BASE_ARCHIVE_H_
