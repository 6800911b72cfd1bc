#include "client/sdk/modules/include_scan.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

TEST(IncludeScanTest, SourceWithCompilerIncludesOnlyIsWhole) {
  for (const char* const code : {
           "",
           "__global__ void F() {}",
           "#include <cuda_fp16.h>",
           "  #  include_next\t<cuda_fp16.h> // the compiler's",
           "%:include <cuda_fp16.h>",
           "#include /* ours */ <cooperative_groups/reduce.h>",
           "#if __has_include(<cuda_fp16.h>)\n#include <cuda_fp16.h>\n#endif",
           "#if __has_builtin(__builtin_expect)\n#endif",
           "// #included \"a.h\"",
           "#define INCLUDE 1\n#pragma once\n#ifdef INCLUDE\n#endif",
           "// what to include \"here\"\nint include = 3 % 2;",
           "#define STRING(x) #x\nconst char* a = STRING(include);",
           "int a = b %c; #",
           "%",
           "#",
       }) {
    EXPECT_TRUE(IncludesOnlyTheCompilersOwn(code)) << code;
  }
}

TEST(IncludeScanTest, DisguisedIncludeIsFound) {
  for (const char* const code : {
           "#include \"a.h\"",
           "\t# \v include\f\"a.h\"",
           "#include_next \"a.h\"",
           "#import \"a.h\"",
           "#embed \"a.bin\"",
           // The name comes from a macro.
           "#include HEADER",
           "#define HEADER \"a.h\"\n#include HEADER",
           "#include STRING(a.h)",
           // Other spellings of #.
           "%:include \"a.h\"",
           "%: include \"a.h\"",
           "?\?=include \"a.h\"",
           // Continued lines.
           "#inc\\\nlude \"a.h\"",
           "#inc\\\r\nlude \"a.h\"",
           "#inc\\ \t\nlude \"a.h\"",
           "#inc?\?/\nlude \"a.h\"",
           "#\\\n\\\ninclude \"a.h\"",
           "%\\\n:include \"a.h\"",
           "#include \\\n\"a.h\"",
           // Comments.
           "/* */#include \"a.h\"",
           "#/* */include \"a.h\"",
           "# /* \n */ /**/ include \"a.h\"",
           "#include/**/\"a.h\"",
           "#include/*<a.h>*/\"a.h\"",
           "#include /\\\n* */ \"a.h\"",
           // If the trigraph has no meaning, the comment ends with its line; otherwise it continues.
           "// ?\?/\n#include \"a.h\"",
           "// \\\n\n#include \"a.h\"",
           // After text that looks like the start of a comment or of a string.
           "const char* a = \"/*\";\n#include \"a.h\"\nconst char* b = \"*/\";",
           "const char* a = R\"(\" /* )\";\n#include \"a.h\"\n/* */",
           "int a = 1'000 /* '*/;\n#include \"a.h\"",
           // Letters as numeric escapes.
           "#\\u0069nclude \"a.h\"",
           "#incl\\u0075de \"a.h\"",
           // The result depends on which files exist.
           "#if __has_include(\"a.h\")\n#endif",
           "#if __has_include ( HEADER )\n#endif",
           "#define ASK __has_include\n#if ASK(\"a.h\")\n#endif",
           "#if __has_\\\ninclude(\"a.h\")\n#endif",
           "#if __has_include_next(\"a.h\")\n#endif",
           "#if __has_embed(\"a.h\")\n#endif",
           // Names that lead out of the compiler's folders, or are malformed.
           "#include </home/a.h>",
           "#include <../a.h>",
           "#include <x/../../a.h>",
           "#include <a.h",
           "#include",
           // Only one of the two includes is harmless.
           "#include \"a.h\"\n#include <b.h>",
           "#include <b.h>\n#include \"a.h\"",
       }) {
    EXPECT_FALSE(IncludesOnlyTheCompilersOwn(code)) << code;
  }
}

// Combines all spellings of one directive's parts, two disguises at a time.
TEST(IncludeScanTest, DoublyDisguisedIncludeIsFound) {
  const char* const begins[] = {"#", "%:", "?\?=", "%\\\n:"};
  const char* const gaps[] = {"", " ", "\\\n", "/* # */", "/*\n*/", "?\?/\n", "\\\n/*<a>*/\\\n", "\t/**//**/"};
  const char* const words[] = {"include", "inc\\\nlude", "inclu?\?/\nde", "include_next", "imp\\\nort"};
  const char* const names[] = {"\"a.h\"", " A", "\\\n\"a.h\"", "</a.h>"};
  for (const char* const begin : begins) {
    for (const char* const gap : gaps) {
      for (const char* const word : words) {
        for (const char* const other : gaps) {
          for (const char* const name : names) {
            const std::string code = absl::StrCat("int a;\n", begin, gap, word, other, name, "\nint b;\n");
            EXPECT_FALSE(IncludesOnlyTheCompilersOwn(code)) << code;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace berth::internal
