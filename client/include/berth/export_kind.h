// ExportKind: how a process receives a block.

#ifndef BERTH_EXPORT_KIND_H_
#define BERTH_EXPORT_KIND_H_

namespace berth {

enum class ExportKind {
  // As a file descriptor: the memory outlives every daemon process.
  kFd = 1,
  // As a 64-byte handle (CUDA's legacy IPC, and its substitute on host devices), for programs that need such memory.
  // Any process that has the bytes can open it. The memory dies with the daemon process that made it; references then
  // report this.
  kCudaIpc = 2,
};

}  // namespace berth

#endif  // BERTH_EXPORT_KIND_H_
