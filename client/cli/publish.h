// A file's bytes as a published block: loaded once per node, mapped by everybody.

#ifndef CLIENT_CLI_PUBLISH_H_
#define CLIENT_CLI_PUBLISH_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/session.h"
#include "common/bytes.h"

namespace berth::cli {

struct PublishOptions {
  std::string name;
  std::string path;
  uint32_t device = 0;
};

// Leases a block of the file's size, reads the file into it and publishes it. Returns the file's size.
// Errors: the file's; Block::Allocate()'s and Block::Publish()'s. Nothing is left behind after one.
absl::StatusOr<Bytes> PublishFile(const std::shared_ptr<Session>& session, const PublishOptions& options);

}  // namespace berth::cli

#endif  // CLIENT_CLI_PUBLISH_H_
