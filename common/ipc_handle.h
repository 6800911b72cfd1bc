// IpcHandle: the 64 bytes by which a process opens device memory of another (CUDA's legacy IPC, and what stands
// for it where there is no CUDA).

#ifndef COMMON_IPC_HANDLE_H_
#define COMMON_IPC_HANDLE_H_

#include <array>
#include <cstddef>
#include <ostream>

namespace berth {

// Whoever has the bytes can open the memory, so nothing of ours ever prints them.
struct IpcHandle {
  std::array<std::byte, 64> bytes = {};

  friend bool operator==(const IpcHandle&, const IpcHandle&) = default;
  // For GoogleTest, which would print the bytes of what it does not know.
  friend std::ostream& operator<<(std::ostream& out, const IpcHandle&) { return out << "<IPC handle>"; }
};
template <typename Archive>
void Fields(Archive& archive, IpcHandle& value) {
  archive(value.bytes);
}

}  // namespace berth

#endif  // COMMON_IPC_HANDLE_H_
