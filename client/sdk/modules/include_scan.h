// Decides from a source's text whether the source depends on no file but itself and the compiler's own.

#ifndef CLIENT_SDK_MODULES_INCLUDE_SCAN_H_
#define CLIENT_SDK_MODULES_INCLUDE_SCAN_H_

#include "absl/strings/string_view.h"

namespace berth::internal {

// Whether `code`, in C or C++, names files only by `<name>` in an #include or a __has_include. Such names lead to the
// compiler's own files where no option names a folder. Checks every # anywhere, including comments, strings and
// disabled branches. Handles everything that may separate a directive's parts: trigraphs, digraphs, continued lines,
// comments. A source with the result true includes no other file; a source with the result false may only mention one.
// A name that leads out of the compiler's folders, "</path>" or "<../path>", gives false.
bool IncludesOnlyTheCompilersOwn(absl::string_view code);

}  // namespace berth::internal

#endif  // CLIENT_SDK_MODULES_INCLUDE_SCAN_H_
