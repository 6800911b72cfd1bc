// FakeMemory: memory of this process that represents a fake device's memory.

#ifndef COMMON_CUDA_TESTING_FAKE_MEMORY_H_
#define COMMON_CUDA_TESTING_FAKE_MEMORY_H_

#include <string.h>
#include <sys/mman.h>

#include <cstdint>
#include <map>

#include <berth/bytes.h>

namespace berth::cuda {

// FakeMemory is thread-compatible. Untouched memory costs nothing.
class FakeMemory {
 public:
  FakeMemory() = default;
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;
  ~FakeMemory() {
    for (const auto& [address, bytes] : blocks_) Unmap(address, bytes);
  }

  // Allocates as a device does: aligned to 2 MiB, with leftovers of an earlier user. Returns: the address; 0 on
  // failure.
  uint64_t Allocate(Bytes bytes) {
    const uint64_t size = bytes.count() + kAlignment;
    void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, kMapFlags, -1, 0);
    if (mapped == MAP_FAILED) return 0;
    const uint64_t start = reinterpret_cast<uint64_t>(mapped);
    const uint64_t address = (start + kAlignment - 1) / kAlignment * kAlignment;
    if (address > start) ::munmap(mapped, address - start);
    ::munmap(At(address + bytes.count()), start + size - address - bytes.count());
    memset(At(address), 0xAB, bytes.count() < kLeftover ? bytes.count() : kLeftover);
    blocks_[address] = bytes;
    return address;
  }

  // Frees the block at `address`. Returns whether it existed.
  bool Free(uint64_t address) {
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return false;
    Unmap(found->first, found->second);
    blocks_.erase(found);
    return true;
  }

  // Returns the `bytes` from `address` on, or nullptr if they are not within one block.
  void* Find(uint64_t address, uint64_t bytes) const {
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return nullptr;
    const auto& [start, size] = *--after;
    return address - start + bytes <= size.count() ? At(address) : nullptr;
  }

  bool empty() const { return blocks_.empty(); }

 private:
  static constexpr uint64_t kAlignment = uint64_t{2} << 20;
  static constexpr uint64_t kLeftover = 8192;
  static constexpr int kMapFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

  static void* At(uint64_t address) { return reinterpret_cast<void*>(address); }
  static void Unmap(uint64_t address, Bytes bytes) { ::munmap(At(address), bytes.count()); }

  std::map<uint64_t, Bytes> blocks_;
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_TESTING_FAKE_MEMORY_H_
