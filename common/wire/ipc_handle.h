// IpcHandle: the 64 bytes by which a process opens device memory of another process (CUDA's legacy IPC, or its
// substitute on hosts without CUDA).

#ifndef COMMON_WIRE_IPC_HANDLE_H_
#define COMMON_WIRE_IPC_HANDLE_H_

#include <array>
#include <cstddef>
#include <ostream>

namespace berth {

// Any holder of the bytes can open the memory, so Berth never prints them.
struct IpcHandle {
  std::array<std::byte, 64> bytes = {};

  friend bool operator==(const IpcHandle&, const IpcHandle&) = default;
  // GoogleTest prints the raw bytes of types without an operator<<.
  friend std::ostream& operator<<(std::ostream& out, const IpcHandle&) { return out << "<IPC handle>"; }
};
template <typename Archive>
void Fields(Archive& archive, IpcHandle& value) {
  archive(value.bytes);
}

}  // namespace berth

#endif  // COMMON_WIRE_IPC_HANDLE_H_
