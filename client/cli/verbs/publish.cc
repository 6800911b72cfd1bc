#include "client/cli/verbs/publish.h"

#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <berth/block.h>
#include <berth/error.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "client/cli/device_name.h"
#include "client/cli/file_load.h"
#include "client/cli/source_file.h"
#include "client/sdk/admin/inspector.h"
#include "common/cuda/driver.h"
#include "common/label.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// Retains a device's primary context, which both the load and the publication need.
class PrimaryContext {
 public:
  static absl::StatusOr<PrimaryContext> Retain(cuda::Driver& driver, const std::string& device_uuid) {
    BERTH_ASSIGN_OR_RETURN(const int ordinal, cuda::FindDevice(driver, device_uuid));
    BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver.RetainPrimaryContext(ordinal));
    return PrimaryContext(driver, ordinal, context);
  }
  PrimaryContext(PrimaryContext&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), ordinal_(other.ordinal_), context_(other.context_) {}
  PrimaryContext& operator=(PrimaryContext&&) = delete;
  ~PrimaryContext() {
    if (driver_ != nullptr) driver_->ReleasePrimaryContext(ordinal_).IgnoreError();
  }
  cuda::Context get() const { return context_; }

 private:
  PrimaryContext(cuda::Driver& driver, int ordinal, cuda::Context context)
      : driver_(&driver), ordinal_(ordinal), context_(context) {}
  cuda::Driver* driver_;
  int ordinal_;
  cuda::Context context_;
};

bool SameTenant(const v1::Tenant& a, const v1::Tenant& b) {
  return a.uid() == b.uid() && a.container() == b.container();
}

// Errors: NAME_TAKEN, as for the publication itself.
absl::Status CheckNameIsFree(const std::shared_ptr<Session>& session, const std::string& name) {
  const Inspector inspector(session);
  BERTH_ASSIGN_OR_RETURN(const v1::ListBlocksResponse blocks, inspector.ListBlocks());
  std::vector<const v1::Block*> named;
  for (const v1::Block& block : blocks.blocks()) {
    if (block.name() == name && block.state() != v1::Block::LOST) named.push_back(&block);
  }
  if (named.empty()) return absl::OkStatus();
  // An operator also sees other users' names.
  BERTH_ASSIGN_OR_RETURN(const v1::ListSessionsResponse sessions, inspector.ListSessions());
  for (const v1::Session& own : sessions.sessions()) {
    if (own.id() != session->id().value()) continue;
    for (const v1::Block* const block : named) {
      if (!SameTenant(block->tenant(), own.tenant())) continue;
      return Refuse(Reason::kNameTaken,
                    "block {block} already has the name \"{name}\": replace it with --replace, or free the name with "
                    "`berth blocks unpublish`",
                    {{"block", block->handle().block()}, {"name", name}});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Block> AllocateFor(const std::shared_ptr<Session>& session, const Publication& publication, Bytes size) {
  BlockOptions options = {.bytes = size, .label = publication.name};
  if (publication.device.empty()) {
    options.pick = "best";
  } else {
    BERTH_ASSIGN_OR_RETURN(const v1::ListDevicesResponse devices, Inspector(session).ListDevices());
    BERTH_ASSIGN_OR_RETURN(const v1::Device device, FindDevice(devices, publication.device));
    options.device_uuid = device.uuid();
  }
  return Block::Allocate(session, options);
}

absl::Status Fill(const SourceFile& file, const Mapping& mapping, const std::optional<PrimaryContext>& context) {
  if (!context.has_value()) {
    return LoadToHost(file.fd(), std::span(static_cast<std::byte*>(mapping.data()), file.size().count()));
  }
  BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
  return LoadToDevice(*driver, context->get(), file.fd(), file.size(),
                      reinterpret_cast<cuda::DevicePointer>(mapping.data()));
}

std::vector<uint32_t> MembersOf(const group& found) {
  std::set<uint32_t> members;
  for (char** name = found.gr_mem; *name != nullptr; ++name) {
    if (const passwd* const user = ::getpwnam(*name); user != nullptr) members.insert(user->pw_uid);
  }
  // Users whose primary group it is are not among the listed members.
  ::setpwent();
  while (const passwd* const user = ::getpwent()) {
    if (user->pw_gid == found.gr_gid) members.insert(user->pw_uid);
  }
  ::endpwent();
  return {members.begin(), members.end()};
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> FindGrantees(const std::string& text) {
  absl::string_view name = text;
  const bool group_only = absl::ConsumePrefix(&name, "group:");
  uint32_t number = 0;
  const bool is_number = absl::SimpleAtoi(name, &number);
  if (!group_only) {
    if (is_number) return std::vector<uint32_t>{number};
    const passwd* const user = ::getpwnam(text.c_str());
    if (user != nullptr) return std::vector<uint32_t>{user->pw_uid};
  }
  const group* const found = is_number ? ::getgrgid(number) : ::getgrnam(std::string(name).c_str());
  if (found == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, 64), "\" is not a ",
                                                   group_only ? "group" : "user or group", " on this system"));
  }
  const std::string group_name = found->gr_name;
  std::vector<uint32_t> members = MembersOf(*found);
  if (members.empty()) return absl::InvalidArgumentError(absl::StrCat("group ", group_name, " has no members"));
  return members;
}

absl::StatusOr<PublishedFile> PublishFile(const std::shared_ptr<Session>& session, const Publication& publication) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("name", publication.name));
  BERTH_ASSIGN_OR_RETURN(const SourceFile file, SourceFile::Open(publication.path));
  if (!publication.replace) BERTH_RETURN_IF_ERROR(CheckNameIsFree(session, publication.name));
  BERTH_ASSIGN_OR_RETURN(Block block, AllocateFor(session, publication, file.size()));
  for (const uint32_t uid : publication.grants) BERTH_RETURN_IF_ERROR(block.GrantToTenant(uid));
  const PublishedFile published = {.block = block.handle().block, .bytes = file.size(), .device = block.device()};
  std::optional<PrimaryContext> context;
  {
    BERTH_ASSIGN_OR_RETURN(const Mapping mapping, block.Map());
    if (mapping.kind() != BlockKind::kHost) {
      BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
      BERTH_ASSIGN_OR_RETURN(PrimaryContext retained, PrimaryContext::Retain(*driver, block.handle().device_uuid));
      context.emplace(std::move(retained));
    }
    const absl::Status filled = Fill(file, mapping, context);
    // A file that was truncated ends early; CheckUnchanged() gives the more specific error.
    BERTH_RETURN_IF_ERROR(file.CheckUnchanged());
    if (!filled.ok()) return absl::Status(filled.code(), absl::StrCat(publication.path, ": ", filled.message()));
  }
  BERTH_RETURN_IF_ERROR(block.Publish(publication.name, {.replace = publication.replace}));
  return published;
}

}  // namespace berth::cli
