#include "common/archive.h"

#include <vector>

namespace berth {

void ArchiveWriter::Write(const absl::Status& status) {
  std::vector<std::pair<std::string, std::string>> payloads;
  status.ForEachPayload([&payloads](absl::string_view url, const absl::Cord& payload) {
    payloads.emplace_back(url, payload);
  });
  (*this)(status.code(), std::string(status.message()), payloads);
}

void ArchiveReader::Read(absl::Status& status) {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string message;
  std::vector<std::pair<std::string, std::string>> payloads;
  (*this)(code, message, payloads);
  status = absl::Status(code, message);
  for (const auto& [url, payload] : payloads) status.SetPayload(url, absl::Cord(payload));
}

absl::Status ArchiveReader::Finish() const {
  if (failed_) return absl::DataLossError("the bytes are not of such a value");
  if (!bytes_.empty()) return absl::DataLossError("the bytes are more than such a value");
  return absl::OkStatus();
}

}  // namespace berth
