// Named memory: the substitute for CUDA's legacy IPC on a host device. A block is a sealed memfd of the device's
// context worker. The worker serves it on a socket in the folder "ipc" of the daemon's run folder. A process that sends
// the 64 bytes of the handle receives an fd: as with CUDA, any holder of the bytes can open the memory. The size is
// fixed, nothing is stored in the run folder, and no handle works after its worker has ended.
//
//   BERTH_ASSIGN_OR_RETURN(IpcHandle handle, server->Create(bytes));  // daemon/device/memory/named_memory_server.h
//   BERTH_ASSIGN_OR_RETURN(UniqueFd fd, OpenNamedMemory(folder, handle));   // a client
//
// Memory that the worker has removed lives on where it is mapped, as with CUDA memory that its exporter has freed.

#ifndef COMMON_OS_NAMED_MEMORY_H_
#define COMMON_OS_NAMED_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "common/secret.h"
#include "common/wire/ipc_handle.h"

namespace berth {

// The contents of a named-memory handle.
struct NamedHandle {
  uint32_t device = 0;
  Secret key;
};
IpcHandle MakeNamedHandle(uint32_t device, const Secret& key);
// Parses a handle. Errors: INVALID_FIELD for a handle of another kind; the error text omits the handle.
absl::StatusOr<NamedHandle> ReadNamedHandle(const IpcHandle& handle);

// The server's answer to a handle, with one fd where `found` is 1.
struct NamedAnswer {
  uint32_t found = 0;
};

// Return the folder of the sockets, and the socket of a device.
std::string NamedMemoryFolder(const std::string& folder);
std::string NamedMemorySocket(const std::string& folder, uint32_t device);

// Opens memory for reading and writing.
// Errors: as ReadNamedHandle(); kNotFound if the worker has removed the memory or has ended; kUnavailable if the worker
// does not answer; those of the sockets.
absl::StatusOr<UniqueFd> OpenNamedMemory(const std::string& folder, const IpcHandle& handle);

// Remove the socket that an ended context worker of the device left; or all such sockets, and the folder "ipc" too.
void RemoveNamedMemory(const std::string& folder, uint32_t device);
void RemoveAllNamedMemory(const std::string& folder);

}  // namespace berth

#endif  // COMMON_OS_NAMED_MEMORY_H_
