// NamedMemoryServer: the owner's end of named memory (common/os/named_memory.h). The server has its own thread, so that
// a worker that executes other commands delays no importer.

#ifndef DAEMON_DEVICE_MEMORY_NAMED_MEMORY_SERVER_H_
#define DAEMON_DEVICE_MEMORY_NAMED_MEMORY_SERVER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/thread.h"
#include "common/wire/ipc_handle.h"

namespace berth {

// Thread-safe.
class NamedMemoryServer {
 public:
  // Limit of connections that have not sent a handle yet. To accept another connection, the server drops the oldest of
  // the user with most.
  static constexpr size_t kConnections = 64;

  // Listens on the socket of `device`, which no other process serves. Errors: those of the file system.
  static absl::StatusOr<std::unique_ptr<NamedMemoryServer>> Start(std::string folder, uint32_t device);
  NamedMemoryServer(const NamedMemoryServer&) = delete;
  NamedMemoryServer& operator=(const NamedMemoryServer&) = delete;
  // Removes the socket; all handles become invalid.
  ~NamedMemoryServer() ABSL_LOCKS_EXCLUDED(mu_);

  // Creates zeroed, sealed memory whose pages the kernel allocates on first access. Returns its handle.
  // Errors: kResourceExhausted without a free fd; kInternal for an invalid size.
  absl::StatusOr<IpcHandle> Create(Bytes bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a duplicate of the memory's fd. Errors: kNotFound.
  absl::StatusOr<UniqueFd> Open(const IpcHandle& handle) const ABSL_LOCKS_EXCLUDED(mu_);
  // Invalidates the handle.
  void Remove(const IpcHandle& handle) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Connection {
    UniqueFd fd;
    uid_t uid = 0;
  };

  NamedMemoryServer(std::string folder, uint32_t device, UniqueFd listener, UniqueFd wake);
  void Serve() ABSL_LOCKS_EXCLUDED(mu_);
  void Accept();
  void DropOne();
  // Answers if the handle has arrived. Returns whether the connection is finished.
  bool Answer(int socket) const ABSL_LOCKS_EXCLUDED(mu_);

  const std::string folder_;
  const uint32_t device_;
  const UniqueFd listener_;
  // An eventfd that ends the thread.
  const UniqueFd wake_;
  // Used by the thread alone; oldest first.
  std::vector<Connection> connections_;

  mutable Mutex mu_;
  // Keyed by the bytes of the handle's secret key.
  std::map<std::string, UniqueFd> memory_ ABSL_GUARDED_BY(mu_);

  Thread thread_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_NAMED_MEMORY_SERVER_H_
