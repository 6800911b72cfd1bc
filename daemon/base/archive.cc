#include "daemon/base/archive.h"

#include <algorithm>
#include <vector>

namespace berth {

void ArchiveWriter::Write(const absl::Status& status) {
  std::vector<std::pair<std::string, std::string>> payloads;
  status.ForEachPayload([&payloads](absl::string_view url, const absl::Cord& payload) {
    payloads.emplace_back(url, payload);
  });
  // Payloads have no fixed order; equal statuses must yield equal bytes.
  std::sort(payloads.begin(), payloads.end());
  (*this)(static_cast<int>(status.code()), std::string(status.message()), payloads);
}

void ArchiveReader::Read(absl::Status& status) {
  auto code = static_cast<int>(absl::StatusCode::kUnknown);
  std::string message;
  std::vector<std::pair<std::string, std::string>> payloads;
  (*this)(code, message, payloads);
  // An unknown code becomes kUnknown.
  status = absl::Status(static_cast<absl::StatusCode>(code), message);
  for (const auto& [url, payload] : payloads) status.SetPayload(url, absl::Cord(payload));
}

absl::Status ArchiveReader::Finish() const {
  if (failed_) return absl::DataLossError("the bytes do not encode such a value");
  if (!bytes_.empty()) return absl::DataLossError("bytes follow the encoded value");
  return absl::OkStatus();
}

}  // namespace berth
