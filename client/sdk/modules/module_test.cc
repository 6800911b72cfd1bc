#include <berth/module.h>

#include <string>
#include <vector>

#include <berth/error.h>
#include <berth/module_compiler.h>
#include <berth/probed_device.h>

#include "gtest/gtest.h"

namespace berth {
namespace {

// A compiler whose results the test sets.
class FakeCompiler final : public ModuleCompiler {
 public:
  absl::StatusOr<std::string> version = std::string("fake 1");
  absl::StatusOr<std::string> module = std::string("ptx");
  int asked = 0;

  absl::StatusOr<std::string> Version() override {
    ++asked;
    return version;
  }
  absl::StatusOr<std::string> Compile(const ModuleSource&) override { return module; }
};

// Compiles without a session; none of these tests uses one.
class CompileModuleTest : public ::testing::Test {
 protected:
  absl::StatusOr<CompiledModule> Compile(absl::string_view label, const ModuleSource& source) {
    return CompileModule(/*session=*/nullptr, label, {.capability = {9, 0}}, source, {.compiler = &compiler_});
  }

  FakeCompiler compiler_;
};

TEST_F(CompileModuleTest, EmptyLabelIsRejected) {
  const absl::Status empty = Compile("", {.code = "int x;"}).status();
  EXPECT_TRUE(IsRefusal(empty, Reason::kInvalidField)) << empty;
  EXPECT_EQ(empty.message(), "label: 0 bytes, the least is 1");
  EXPECT_EQ(compiler_.asked, 0);
}

TEST_F(CompileModuleTest, EmptySourceIsRejected) {
  const absl::Status status = Compile("sphere", {.code = ""}).status();
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
  EXPECT_EQ(status.message(), "code: 0 bytes, the least is 1");
  EXPECT_EQ(NamedValueOf(status, "label"), "sphere");
  EXPECT_EQ(compiler_.asked, 0);
}

TEST_F(CompileModuleTest, ArchitectureOptionIsRejected) {
  for (const std::string option :
       {"--gpu-architecture=sm_90", "--gpu-architecture", "-arch=sm_90", "-arch", "-archsm_90"}) {
    const absl::Status status =
        Compile("sphere", {.code = "int x;", .options = {"--use_fast_math", option}}).status();
    EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
    EXPECT_EQ(status.message(), "invalid options \"" + option + "\": the architecture is a field of its own");
    EXPECT_EQ(NamedValueOf(status, "field"), "options");
    EXPECT_EQ(NamedValueOf(status, "value"), option);
    EXPECT_EQ(NamedValueOf(status, "label"), "sphere");
  }
  const absl::Status huge = Compile("sphere", {.code = "int x;", .architecture = std::string(129, 'x')}).status();
  EXPECT_EQ(huge.message(), "architecture: 129 bytes, limit 128");
  EXPECT_EQ(NamedValueOf(huge, "label"), "sphere");
  EXPECT_EQ(compiler_.asked, 0);
}

TEST_F(CompileModuleTest, MissingCompilerIsUnsupported) {
  compiler_.version = Refuse(Reason::kUnsupported, "no {capability}: {why}",
                             {{"capability", "NVRTC"}, {"why", "libnvrtc.so: cannot open"}});
  const absl::Status status = Compile("sphere", {.code = "int x;"}).status();
  EXPECT_TRUE(IsRefusal(status, Reason::kUnsupported)) << status;
  EXPECT_EQ(status.message(), "no NVRTC: libnvrtc.so: cannot open");
  EXPECT_EQ(NamedValueOf(status, "label"), "sphere");
  EXPECT_EQ(NamedValueOf(status, "capability"), "NVRTC");
}

TEST_F(CompileModuleTest, SourceWithIncludesIsCompiledLocally) {
  const ModuleSource source = {.code = "#include \"a.h\""};
  const absl::StatusOr<CompiledModule> module = Compile("sphere", source);
  ASSERT_TRUE(module.ok()) << module.status();
  EXPECT_EQ(module->origin(), CompiledModule::Origin::kAlone);
  EXPECT_EQ(module->bytes(), "ptx");
  EXPECT_EQ(module->architecture(), "compute_90");
  compiler_.module = Refuse(Reason::kInvalidField, "{field} does not compile for {limit}: {value}",
                            {{"field", "source"}, {"limit", "compute_90"}, {"value", "no a.h"}});
  const absl::Status status = Compile("sphere", source).status();
  EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
  EXPECT_EQ(status.message(), "sphere NVRTC compile failed: no a.h");
}

}  // namespace
}  // namespace berth
