// Publishes a file's bytes as a block: loaded once per node, mapped by every user.

#ifndef CLIENT_CLI_VERBS_PUBLISH_H_
#define CLIENT_CLI_VERBS_PUBLISH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>
#include <berth/session.h>

#include "absl/status/statusor.h"

namespace berth::cli {

struct Publication {
  std::string name;
  std::string path;
  // The device's ordinal, its UUID or a unique prefix of it; empty: the device with the most free bytes.
  std::string device;
  // Take over the name from the block that has it.
  bool replace = false;
  // Users other than this user that may import the block.
  std::vector<uint32_t> grants;
};

struct PublishedFile {
  BlockId block;
  Bytes bytes;
  uint32_t device = 0;
};

// Parses the receivers of a grant: a user, or, if no user has the name, a group, which stands for its current members.
// "group:NAME" is always the group. Numbers are uids; after "group:" they are gids.
// Errors: kInvalidArgument naming the text.
absl::StatusOr<std::vector<uint32_t>> FindGrantees(const std::string& text);

// Leases a block of the file's size, reads the file into it and publishes it. A taken name is refused before anything
// is leased or read.
// Errors: SourceFile's, which name the change if the file changed meanwhile; Block::Allocate()'s, GrantToTenant()'s and
// Publish()'s; NAME_TAKEN. After an error nothing is left behind.
absl::StatusOr<PublishedFile> PublishFile(const std::shared_ptr<Session>& session, const Publication& publication);

}  // namespace berth::cli

#endif  // CLIENT_CLI_VERBS_PUBLISH_H_
