#include "common/archive.h"

#include <algorithm>
#include <vector>

namespace berth {

void ArchiveWriter::Write(const absl::Status& status) {
  std::vector<std::pair<std::string, std::string>> payloads;
  status.ForEachPayload([&payloads](absl::string_view url, const absl::Cord& payload) {
    payloads.emplace_back(url, payload);
  });
  // They come in any order; the same status is to be the same bytes.
  std::sort(payloads.begin(), payloads.end());
  (*this)(static_cast<int>(status.code()), std::string(status.message()), payloads);
}

void ArchiveReader::Read(absl::Status& status) {
  auto code = static_cast<int>(absl::StatusCode::kUnknown);
  std::string message;
  std::vector<std::pair<std::string, std::string>> payloads;
  (*this)(code, message, payloads);
  // Of a code that there is not it is unknown.
  status = absl::Status(static_cast<absl::StatusCode>(code), message);
  for (const auto& [url, payload] : payloads) status.SetPayload(url, absl::Cord(payload));
}

absl::Status ArchiveReader::Finish() const {
  if (failed_) return absl::DataLossError("the bytes are not of such a value");
  if (!bytes_.empty()) return absl::DataLossError("the bytes are more than such a value");
  return absl::OkStatus();
}

}  // namespace berth
