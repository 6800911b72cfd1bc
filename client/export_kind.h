// ExportKind: how a block comes into a process.

#ifndef CLIENT_EXPORT_KIND_H_
#define CLIENT_EXPORT_KIND_H_

namespace berth {

enum class ExportKind {
  // As a file descriptor: the memory outlives every process of the daemon's.
  kFd = 1,
  // As a 64-byte handle (CUDA's legacy IPC, and what stands for it on host devices), for those who need such memory.
  // Any process that has the bytes can open it. It dies with the daemon's process that made it: references say so then.
  kCudaIpc = 2,
};

}  // namespace berth

#endif  // CLIENT_EXPORT_KIND_H_
