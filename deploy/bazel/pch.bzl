"""Precompiled headers: most of a unit's compile time is the parsing of the system libraries' headers.

Clang only. Sources still include what they use; GCC builds them without.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    configuration = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    output = ctx.actions.declare_file(ctx.label.name + ".pch")
    variables = cc_common.create_compile_variables(
        feature_configuration = configuration,
        cc_toolchain = toolchain,
        # Instantiates templates here instead of in each unit. Stores no times, as a cache restores files with others.
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + [
            "-xc++-header",
            "-fpch-instantiate-templates",
            "-Xclang",
            "-fno-pch-timestamp",
        ],
        # Paths of files would be stored as absolute ones, and no other checkout could use the cached file.
        source_file = "-",
        output_file = "-",
        # As all units are (.bazelrc).
        use_pic = True,
    )
    arguments = cc_common.get_memory_inefficient_command_line(
        feature_configuration = configuration,
        action_name = "c++-compile",
        variables = variables,
    )
    environment = cc_common.get_environment_variables(
        feature_configuration = configuration,
        action_name = "c++-compile",
        variables = variables,
    )
    tool = cc_common.get_tool_for_action(feature_configuration = configuration, action_name = "c++-compile")
    ctx.actions.run_shell(
        mnemonic = "PrecompileHeader",
        command = "PWD=/proc/self/cwd {} \"$@\" < {} > {}".format(tool, ctx.file.header.path, output.path),
        arguments = arguments,
        env = environment,
        inputs = depset([ctx.file.header, ctx.file._versions], transitive = [toolchain.all_files]),
        outputs = [output],
    )
    return [
        DefaultInfo(files = depset([output])),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset([output]))),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        "copts": attr.string_list(),
        "_versions": attr.label(default = Label("@system//:versions.h"), allow_single_file = True),
        "_cc_toolchain": attr.label(default = Label("@bazel_tools//tools/cpp:current_cc_toolchain")),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
