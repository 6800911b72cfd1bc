#include <berth/module_compiler.h>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(ModuleCompilerTest, SelfContainedSourceDependsOnNoFiles) {
  EXPECT_TRUE(DependsOnItselfAlone({.code = "int x;"}));
  EXPECT_TRUE(DependsOnItselfAlone({.code = "#include <cuda_fp16.h>\n#define A 1\n// #included \"x\"\nint x;"}));
  EXPECT_TRUE(DependsOnItselfAlone({.code = "int x;", .options = {"--use_fast_math", "-DN=3", "-lineinfo"}}));
}

TEST(ModuleCompilerTest, FilesUnseenByNodeAreDetected) {
  for (const char* const code : {"#include \"a.h\"", "int x;\n  # include \"a.h\"", "\t#include\"a.h\"",
                                 "#include HEADER",
                                 "%:inclu\\\nde \"a.h\"", "#include_next \"a.h\"", "int x;\r\n#include \"a.h\"\r\n"}) {
    EXPECT_FALSE(DependsOnItselfAlone({.code = code})) << code;
  }
  for (const char* const option : {"-I/usr/include", "--include-path=/x", "-include=a.h", "--pre-include=a.h"}) {
    EXPECT_FALSE(DependsOnItselfAlone({.code = "int x;", .options = {option}})) << option;
  }
}

TEST(ModuleCompilerTest, NvrtcCompilerIsSingleton) { EXPECT_EQ(&NvrtcCompiler(), &NvrtcCompiler()); }

}  // namespace
}  // namespace berth
