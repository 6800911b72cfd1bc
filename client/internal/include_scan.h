// Whether a source is all that a compiler reads for it, as far as its text tells.

#ifndef CLIENT_INTERNAL_INCLUDE_SCAN_H_
#define CLIENT_INTERNAL_INCLUDE_SCAN_H_

#include "absl/strings/string_view.h"

namespace berth::internal {

// Whether `code`, of C or C++, names no file but by `<name>` in an #include or a __has_include, which is the compiler's
// own where no option names a folder. Looks at every # wherever it stands, in comments, strings and branches that are
// not compiled, too, and sees through what may stand between a directive's parts: trigraphs, digraphs, lines that go on
// in the next, comments. So a source of which it says yes includes nothing else; one of which it says no may just talk
// about it. A name that leads out of the compiler's folders, "</path>" or "<../path>", is no such name.
bool IncludesOnlyTheCompilersOwn(absl::string_view code);

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_INCLUDE_SCAN_H_
