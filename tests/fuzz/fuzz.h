// The parts shared by the fuzzers of this folder. Each fuzzer gives arbitrary bytes to a reader of untrusted input,
// which must return for any input; a sanitizer report, an abort or a hang is a finding.
//
//   tests/run --fuzz       libFuzzer, each for $BERTH_FUZZ_SECONDS (clang's runtime)
//   NAME_test              as any test: the seeds, earlier findings (corpus/NAME), and a short run of plain mutations
//                          of both, without feedback about coverage
//
// An input that was a finding is added to corpus/NAME once it is fixed.

#ifndef TESTS_FUZZ_FUZZ_H_
#define TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

// Defined by each fuzzer, with libFuzzer's signature. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace berth::fuzz {

// Defined by each fuzzer: valid inputs, as a correct sender would send them.
std::vector<std::string> Seeds();

// Returns the bytes of the object.
template <typename T>
std::string BytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace berth::fuzz

#endif  // TESTS_FUZZ_FUZZ_H_
