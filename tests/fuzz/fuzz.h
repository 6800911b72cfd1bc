// What every fuzzer of this folder is: a reader of what may be anybody's, given bytes that nobody chose. Whatever
// comes, it answers; a sanitizer, an abort or a hang is a find.
//
//   tests/run --fuzz       libFuzzer, each for $BERTH_FUZZ_SECONDS (clang's runtime)
//   NAME_test              as any test: the seeds, what was found before (corpus/NAME), and a short run of plain
//                          mutations of both, without a word of what they reach
//
// An input that was a find is kept in corpus/NAME once it is none any more.

#ifndef TESTS_FUZZ_FUZZ_H_
#define TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

// Of each fuzzer, as libFuzzer wants it. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace berth::fuzz {

// Of each fuzzer: inputs that a well-meaning sender would send.
std::vector<std::string> Seeds();

// What lies in memory there.
template <typename T>
std::string BytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace berth::fuzz

#endif  // TESTS_FUZZ_FUZZ_H_
