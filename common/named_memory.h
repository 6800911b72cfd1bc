// Named memory: what stands for CUDA's legacy IPC on a device of the host. A block is a file in the folder "ipc" of the
// daemon's run folder, under a name of 128 random bits; who has the 64 bytes of its handle finds it, whoever it is.
//
//   IpcHandle handle;
//   BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateNamedMemory(folder, device, bytes, &handle));   // who makes it
//   BERTH_ASSIGN_OR_RETURN(UniqueFd fd, OpenNamedMemory(folder, handle));          // who is given the handle
//   BERTH_RETURN_IF_ERROR(RemoveNamedMemory(folder, handle));
//
// Memory that is removed lives on where it is mapped, as memory does whose exporter has freed it.

#ifndef COMMON_NAMED_MEMORY_H_
#define COMMON_NAMED_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "common/ipc_handle.h"
#include "common/unique_fd.h"

namespace berth {

// Makes zeroed memory that every user can open, and `*handle`.
// Errors: kResourceExhausted where there is not that much; those of the file system.
absl::StatusOr<UniqueFd> CreateNamedMemory(const std::string& folder, uint32_t device, Bytes bytes,
                                           IpcHandle* handle);

// Opens memory to read and write.
// Errors: INVALID_FIELD for a handle that is none; kNotFound for memory that is no more.
absl::StatusOr<UniqueFd> OpenNamedMemory(const std::string& folder, const IpcHandle& handle);

// Errors: as OpenNamedMemory().
absl::Status RemoveNamedMemory(const std::string& folder, const IpcHandle& handle);

// Removes all memory of a device, or of every device and the folder "ipc" too: whoever made it is gone.
void RemoveNamedMemory(const std::string& folder, uint32_t device);
void RemoveAllNamedMemory(const std::string& folder);

}  // namespace berth

#endif  // COMMON_NAMED_MEMORY_H_
