// TOML files. Include toml++ by this header alone: what the library takes for granted of a text, some texts break; here
// that is a mistake in the text, as any other.

#ifndef COMMON_TOML_H_
#define COMMON_TOML_H_

#include <stdexcept>
#include <string>

#include "absl/status/statusor.h"
// Where the library's own macros come from, before anything uses them.
#include "toml++/impl/preprocessor.h"

namespace berth::internal {
constexpr void ExpectToml(bool holds) {
  if (!holds) throw std::logic_error("this is no TOML");
}
}  // namespace berth::internal

#undef TOML_ASSERT
#undef TOML_ASSERT_ASSUME
#define TOML_ASSERT(condition) ::berth::internal::ExpectToml(static_cast<bool>(condition))
#define TOML_ASSERT_ASSUME(condition) TOML_ASSERT(condition)
#include "toml++/toml.h"

namespace berth {

// Errors: kInvalidArgument naming the file, the line where it is known, and what is wrong with it.
absl::StatusOr<toml::table> ReadToml(const std::string& path);
// The same of a text, which errors call `name`.
absl::StatusOr<toml::table> ParseToml(const std::string& text, const std::string& name);

}  // namespace berth

#endif  // COMMON_TOML_H_
