// Shares a block of memory between two processes. docs/getting-started/first_shared_block.md quotes this file.
//
//   first_shared_block           writes a text into a block, prints the block's handle, waits for Enter
//   first_shared_block HANDLE    reads the text in the same memory

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include <berth/block.h>
#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/session.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace {

absl::Status Write(const std::shared_ptr<berth::Session>& session) {
  absl::StatusOr<berth::Block> block = berth::Block::Allocate(session, {.bytes = berth::MiB(2), .label = "first"});
  if (!block.ok()) return block.status();
  absl::StatusOr<berth::Mapping> mapping = block->Map();
  if (!mapping.ok()) return mapping.status();
  // On a GPU, data() is a device pointer, for kernels and cudaMemcpy().
  if (mapping->kind() == berth::BlockKind::kHost) memcpy(mapping->data(), "hello", sizeof("hello"));
  // Before the handle is out: a session needs a grant to import another session's block, even one of the same user.
  if (absl::Status granted = block->GrantToTenant(getuid()); !granted.ok()) return granted;
  printf("%s\n", berth::FormatHandle(block->handle()).c_str());
  fflush(stdout);
  getchar();
  return absl::OkStatus();  // the destructor of `block` frees it
}

absl::Status Read(const std::shared_ptr<berth::Session>& session, const char* text) {
  absl::StatusOr<berth::BlockHandle> handle = berth::ParseHandle(text);
  if (!handle.ok()) return handle.status();
  absl::StatusOr<berth::Block> block = berth::Block::Import(session, *handle, {.read_only = true});
  if (!block.ok()) return block.status();
  absl::StatusOr<berth::Mapping> mapping = block->Map();
  if (!mapping.ok()) return mapping.status();
  const bool host = mapping->kind() == berth::BlockKind::kHost;
  printf("%zu bytes: %s\n", mapping->size(), host ? static_cast<const char*>(mapping->data()) : "in a GPU's memory");
  return absl::OkStatus();
}

absl::Status Run(const char* handle) {
  absl::StatusOr<std::shared_ptr<berth::Session>> session = berth::Session::Open();
  if (!session.ok()) return session.status();
  return handle == nullptr ? Write(*session) : Read(*session, handle);
}

}  // namespace

int main(int argc, char** argv) {
  const absl::Status status = Run(argc > 1 ? argv[1] : nullptr);
  if (status.ok()) return 0;
  fprintf(stderr, "first_shared_block: %s\n", status.ToString().c_str());
  return 1;
}
